// Which tiles fit into fast memory: the working-set equation, and the sizes that a schedule takes
// when the caller names none.
#pragma once

#include "tilewise/cost.hpp"

namespace tilewise::cost_model {

// Bytes of scores, partial outputs and statistics, each a number.
double accumulator_bytes(const AttentionShape& shape, Accounting accounting);

// The choice with the tile sizes it left open.
//   K and V outside, backward too: half of fast memory for what a key needs (forward: columns =
//     numbers / 4 d, as published), then as many rows as fit, at most head_dim;
//   q outside: 64 keys, then as many rows as fit, in steps of 16.
// One row and one key are the least, whether they fit or not.
ScheduleChoice with_tiles(const AttentionShape& shape, ScheduleChoice choice, double fast_bytes);

}  // namespace tilewise::cost_model
