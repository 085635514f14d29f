// One place that words errors: "tilewise::forward: k.size[3] is 96, expected 64 (from q.size[3])".
#pragma once

#include <string>
#include <string_view>

#include "tilewise/tilewise.hpp"

namespace tilewise {

// operation: "tilewise::forward". argument: "k.size[3]". got, expected: values as text. source:
// where the expectation comes from, "" = nothing to add.
[[noreturn]] void throw_invalid(std::string_view operation, std::string_view argument,
                                std::string_view got, std::string_view expected,
                                std::string_view source);

// "tilewise::forward: unsupported: ..." with each backend's reasons on a line of its own.
[[noreturn]] void throw_unsupported(std::string_view operation, std::string_view what,
                                    const std::vector<BackendAnswer>& answers);

}  // namespace tilewise
