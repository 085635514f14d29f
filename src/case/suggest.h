// "did you mean": the nearest of a few known words, for keys and values of the Case text.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tilewise {

// ", did you mean \"mask\"?", or "" when no known word is near.
std::string suggestion(std::string_view word, std::span<const std::string_view> known);

}  // namespace tilewise
