// JsonScanner: reads JSON of a known shape from front to back, strictly and without a tree: UTF-8,
// escapes, unique structure, whole numbers only. What the caller does not ask for is an error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tilewise::cli {

class JsonScanner {
 public:
  // `file` appears in messages only.
  JsonScanner(std::string_view file, std::string_view text) : file_(file), text_(text) {}

  // '{' or '['; then `while (next('}'))` stands at each member, past the commas.
  void begin(char open);
  bool next(char close);
  void expect(char c);
  // A string of at most kMaxString bytes, unescaped; "" is a string.
  std::string string();
  // A string of any length, checked but not kept.
  void skip_string();
  // A whole number in [0, 2^63). `where` begins the message when it is something else.
  uint64_t number(const std::string& where);
  // Only white space is left.
  void finish();

  [[noreturn]] void fail(const std::string& what) const;

  static constexpr size_t kMaxString = 4096;

 private:
  [[noreturn]] void fail_expected(const std::string& expected) const;
  void skip_space();
  uint32_t hex4();
  uint32_t escape();
  uint32_t utf8();
  // Next character of a string as a code point; false at the closing quote.
  bool character(uint32_t& code);

  std::string_view file_;
  std::string_view text_;
  size_t at_ = 0;
  bool first_ = false;  // just after an opening bracket
};

// Text between quotes, escaped.
std::string json_quoted(std::string_view text);

// `text` with everything but printable ASCII as \xNN, cut at 80 characters: for messages.
std::string printable(std::string_view text);

}  // namespace tilewise::cli
