// Random Cases: small shapes that lie around the edges of tiles and vectors, every option, layout
// and kind of data, both directions. The same seed and number give the same Case everywhere.
#pragma once

#include <cstdint>

#include "case/case.h"

namespace tilewise::test {

Case random_case(uint64_t seed, uint64_t number);

}  // namespace tilewise::test
