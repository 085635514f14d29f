// Random Cases: small shapes that lie around the edges of tiles and vectors, every option, layout
// and kind of data, both directions. The same seed and number give the same Case everywhere.
#pragma once

#include <cstdint>

#include "case/case.h"

namespace tilewise::test {

Case random_case(uint64_t seed, uint64_t number);

// `c` with whatever a GPU kernel is compiled for taken from `kernel`: type, widths, options.
Case like_kernel(Case c, const Case& kernel);

}  // namespace tilewise::test
