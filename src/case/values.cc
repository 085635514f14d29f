// Strict readers and shortest printers of the values in a Case.
#include "case/values.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "case/suggest.h"
#include "error.h"

namespace tilewise {

namespace {

// True when all of `text` is one number.
template <class Number>
bool parse_all(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, number);
  return status == std::errc() && stop == end;
}

std::string quoted(std::string_view text) { return '"' + std::string(text) + '"'; }

constexpr std::string_view kMaskForms =
    "none, causal, causal_top_left, causal:OFFSET, window:LEFT:RIGHT, window:LEFT:RIGHT:OFFSET or "
    "window_top_left:LEFT:RIGHT";

}  // namespace

void refuse_value(std::string_view key, std::string_view value, std::string_view expected) {
  throw_invalid("case", key, quoted(value), expected, "");
}

int64_t read_integer(std::string_view key, std::string_view value, int64_t lowest) {
  int64_t number = 0;
  if (!parse_all(value, number) || number < lowest) {
    refuse_value(key, value, "a whole number of " + std::to_string(lowest) + " or more");
  }
  return number;
}

uint64_t read_unsigned(std::string_view key, std::string_view value, uint64_t highest) {
  uint64_t number = 0;
  if (!parse_all(value, number) || number > highest) {
    refuse_value(key, value, "a whole number from 0 to " + std::to_string(highest));
  }
  return number;
}

double read_number(std::string_view key, std::string_view value) {
  double number = 0;
  if (!parse_all(value, number) || !std::isfinite(number)) {
    refuse_value(key, value, "a finite number");
  }
  return number;
}

bool read_flag(std::string_view key, std::string_view value) {
  if (value != "0" && value != "1") refuse_value(key, value, "0 or 1");
  return value == "1";
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::vector<int64_t> read_lengths(std::string_view key, std::string_view value) {
  std::vector<int64_t> lengths;
  for (const std::string_view part : split(value, ',')) {
    int64_t length = 0;
    // The offsets of a packed batch are int32.
    if (!parse_all(part, length) || length < 0 || length > INT32_MAX) {
      refuse_value(key, value, "lengths of 0 or more, as in " + std::string(key) + "=64,0,17");
    }
    lengths.push_back(length);
  }
  return lengths;
}

size_t read_word(std::string_view key, std::string_view value,
                 std::span<const std::string_view> words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == value) return i;
  }
  std::string expected = "one of ";
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) expected += ", ";
    expected += words[i];
  }
  refuse_value(key, value, expected + suggestion(value, words));
}

Mask read_mask(std::string_view value) {
  const std::vector<std::string_view> parts = split(value, ':');
  const std::string_view form = parts[0];
  std::vector<int64_t> numbers;
  for (size_t i = 1; i < parts.size(); ++i) {
    int64_t number = 0;
    if (!parse_all(parts[i], number)) refuse_value("mask", value, kMaskForms);
    numbers.push_back(number);
  }
  const size_t count = numbers.size();
  if (form == "none" && count == 0) return Mask::none();
  if (form == "causal" && count == 0) return Mask::causal();
  if (form == "causal_top_left" && count == 0) return Mask::causal(Alignment::top_left);
  if (form == "causal" && count == 1) return Mask::causal_at(numbers[0]);
  if (form == "window" && count == 2) return Mask::window(numbers[0], numbers[1]);
  if (form == "window" && count == 3) {
    return {numbers[0], numbers[1], Alignment::at_offset, numbers[2]};
  }
  if (form == "window_top_left" && count == 2) {
    return {numbers[0], numbers[1], Alignment::top_left, 0};
  }
  constexpr std::string_view kForms[] = {"none", "causal", "causal_top_left", "window",
                                         "window_top_left"};
  const std::string near = suggestion(form, kForms);
  refuse_value("mask", value, std::string(kMaskForms) + near);
}

std::string print_number(double value) {
  char text[32];
  const auto [end, status] = std::to_chars(text, text + sizeof text, value);
  return std::string(text, status == std::errc() ? end : text);
}

std::string print_lengths(const std::vector<int64_t>& lengths) {
  std::string text;
  for (const int64_t length : lengths) {
    if (!text.empty()) text += ',';
    text += std::to_string(length);
  }
  return text;
}

std::string print_mask(const Mask& mask) {
  const std::string sides = ':' + std::to_string(mask.left) + ':' + std::to_string(mask.right);
  const bool causal = mask.left == -1 && mask.right == 0;
  switch (mask.alignment) {
    case Alignment::bottom_right:
      if (causal) return "causal";
      return mask.left == -1 && mask.right == -1 ? "none" : "window" + sides;
    case Alignment::top_left:
      return causal ? "causal_top_left" : "window_top_left" + sides;
    case Alignment::at_offset:
      break;
  }
  const std::string offset = ':' + std::to_string(mask.offset);
  return causal ? "causal" + offset : "window" + sides + offset;
}

}  // namespace tilewise
