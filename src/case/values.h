// Values of the Case text: numbers, lists, words of a fixed set and masks, read strictly and
// printed in the shortest form that reads back the same. Internal to src/case.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/tilewise.hpp"

namespace tilewise {

// Each read_ function throws Error(invalid_argument): "case: KEY is "VALUE", expected ...".
[[noreturn]] void refuse_value(std::string_view key, std::string_view value,
                               std::string_view expected);
int64_t read_integer(std::string_view key, std::string_view value, int64_t lowest);
uint64_t read_unsigned(std::string_view key, std::string_view value, uint64_t highest);
double read_number(std::string_view key, std::string_view value);
bool read_flag(std::string_view key, std::string_view value);
std::vector<int64_t> read_lengths(std::string_view key, std::string_view value);
Mask read_mask(std::string_view value);
// Index of `value` among `words`.
size_t read_word(std::string_view key, std::string_view value,
                 std::span<const std::string_view> words);
std::vector<std::string_view> split(std::string_view text, char separator);

std::string print_number(double value);
std::string print_lengths(const std::vector<int64_t>& lengths);
std::string print_mask(const Mask& mask);

}  // namespace tilewise
