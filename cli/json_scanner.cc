// The grammar of RFC 8259, as far as a tensor file's header needs it.
#include "cli/json_scanner.h"

#include "cli/tensor_file.h"

namespace tilewise::cli {

namespace {

void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
    return;
  }
  const int rest = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const uint32_t lead[4] = {0, 0xc0, 0xe0, 0xf0};
  text += static_cast<char>(lead[rest] | code >> (6 * rest));
  for (int i = rest - 1; i >= 0; --i) text += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
}

}  // namespace

void JsonScanner::fail(const std::string& what) const {
  throw InputError(std::string(file_) + ": header " + what);
}

void JsonScanner::fail_expected(const std::string& expected) const {
  const std::string where = " at byte " + std::to_string(at_);
  if (at_ >= text_.size()) fail("ends" + where + ", expected " + expected);
  fail("has '" + printable(text_.substr(at_, 1)) + "'" + where + ", expected " + expected);
}

void JsonScanner::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
    ++at_;
  }
}

void JsonScanner::expect(char c) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != c) fail_expected("'" + std::string(1, c) + "'");
  ++at_;
}

void JsonScanner::begin(char open) {
  expect(open);
  first_ = true;
}

bool JsonScanner::next(char close) {
  skip_space();
  if (at_ < text_.size() && text_[at_] == close) {
    ++at_;
    first_ = false;
    return false;
  }
  if (!first_) {
    if (at_ >= text_.size() || text_[at_] != ',') {
      fail_expected("',' or '" + std::string(1, close) + "'");
    }
    ++at_;
  }
  first_ = false;
  return true;
}

std::string JsonScanner::string() {
  expect('"');
  std::string value;
  uint32_t code = 0;
  while (character(code)) {
    append_utf8(value, code);
    if (value.size() > kMaxString) fail("has a name longer than 4096 bytes");
  }
  return value;
}

void JsonScanner::skip_string() {
  expect('"');
  uint32_t code = 0;
  while (character(code)) continue;
}

bool JsonScanner::character(uint32_t& code) {
  if (at_ >= text_.size()) fail_expected("'\"'");
  const auto byte = static_cast<unsigned char>(text_[at_]);
  if (byte == '"') {
    ++at_;
    return false;
  }
  if (byte < 0x20) fail_expected("no control character");
  if (byte == '\\') {
    code = escape();
  } else if (byte < 0x80) {
    code = byte;
    ++at_;
  } else {
    code = utf8();
  }
  return true;
}

uint32_t JsonScanner::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : ' ';
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) fail_expected("a hexadecimal digit");
    value = value << 4 | static_cast<uint32_t>(digit);
  }
  return value;
}

uint32_t JsonScanner::escape() {
  ++at_;
  const char c = at_ < text_.size() ? text_[at_] : ' ';
  const std::string_view letters = "\"\\/bfnrt";
  const std::string_view values = "\"\\/\b\f\n\r\t";
  const size_t letter = letters.find(c);
  if (letter != std::string_view::npos) {
    ++at_;
    return static_cast<unsigned char>(values[letter]);
  }
  if (c != 'u') fail_expected("an escape of JSON");
  ++at_;
  const uint32_t high = hex4();
  if (high < 0xd800 || high > 0xdfff) return high;
  const bool pair = high < 0xdc00 && text_.substr(at_, 2) == "\\u";
  if (!pair) fail_expected("the other half of a surrogate pair");
  at_ += 2;
  const uint32_t low = hex4();
  if (low < 0xdc00 || low > 0xdfff) fail("has half a surrogate pair");
  return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

uint32_t JsonScanner::utf8() {
  const auto lead = static_cast<unsigned char>(text_[at_]);
  const int rest = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  if (lead < 0xc2 || lead > 0xf4) fail_expected("UTF-8");
  uint32_t code = lead & (0x3fu >> rest);
  for (int i = 1; i <= rest; ++i) {
    const size_t next = at_ + static_cast<size_t>(i);
    const auto byte = next < text_.size() ? static_cast<unsigned char>(text_[next]) : 0u;
    if ((byte & 0xc0) != 0x80) fail_expected("UTF-8");
    code = code << 6 | (byte & 0x3f);
  }
  const uint32_t least[4] = {0, 0x80, 0x800, 0x10000};
  if (code < least[rest] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
    fail_expected("UTF-8");
  }
  at_ += static_cast<size_t>(rest) + 1;
  return code;
}

uint64_t JsonScanner::number(const std::string& where) {
  skip_space();
  const size_t begin = at_;
  while (at_ < text_.size() &&
         std::string_view("+-.0123456789Ee").find(text_[at_]) != std::string_view::npos) {
    ++at_;
  }
  const std::string_view digits = text_.substr(begin, at_ - begin);
  if (digits.empty()) fail_expected("a number");
  int64_t value = 0;
  bool whole = digits[0] != '0' || digits.size() == 1;
  bool fits = true;
  for (const char c : digits) {
    whole = whole && c >= '0' && c <= '9';
    if (!whole) break;
    fits = fits && !__builtin_mul_overflow(value, 10, &value) &&
           !__builtin_add_overflow(value, c - '0', &value);
  }
  if (!whole || !fits) {
    throw InputError(where + " has " + printable(digits) +
                     ", expected a whole number from 0 to 2^63 - 1");
  }
  return static_cast<uint64_t>(value);
}

void JsonScanner::finish() {
  skip_space();
  if (at_ != text_.size()) fail_expected("its end");
}

std::string json_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      const char digits[] = "0123456789abcdef";
      quoted += "\\u00";
      quoted += digits[c >> 4];
      quoted += digits[c & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string printable(std::string_view text) {
  const char digits[] = "0123456789abcdef";
  std::string shown;
  for (const char c : text) {
    if (shown.size() >= 80) return shown + "...";
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += c;
    } else {
      shown += "\\x";
      shown += digits[byte >> 4];
      shown += digits[byte & 15];
    }
  }
  return shown;
}

}  // namespace tilewise::cli
