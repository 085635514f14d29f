// What each schedule moves between slow and fast memory, pass by pass and tensor by tensor.
#pragma once

#include "cost/pairs.h"
#include "tilewise/cost.hpp"

namespace tilewise::cost_model {

// Sums over the sequences of the batch, for one head.
struct Sums {
  double sequences = 0;
  double rows = 0;
  double keys = 0;
  double all_pairs = 0;
  double visible_pairs = 0;
  double longest_rows = 0;
  double longest_keys = 0;
  TileWalk walk;  // over the tiles of the schedule; the whole matrix where there are none
};

// Fills cost.work, traffic, passes and extra_bytes. The operations and matrix_bytes are there.
void add_traffic(const AttentionShape& shape, const ScheduleChoice& choice,
                 const MachineRoofs& machine, const Sums& sums, Cost& cost);

}  // namespace tilewise::cost_model
