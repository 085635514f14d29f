// The roofs of the processor this runs on, measured: multiply-adds, exponentials, and reading from
// each level of memory. Each thread's own CPU time counts, so that neighbours do not lower a roof.
// And those of a GPU, by its own clock.
#pragma once

#include "tilewise/cost.hpp"

namespace tilewise::cli {

struct MeasuredRoofs {
  MachineRoofs machine;       // slow memory DRAM, fast memory the second-level cache of a core
  double l1_bytes_per_s = 0;  // reads; sums over the threads; 0: not measured
  double l2_bytes_per_s = 0;
  double l3_bytes_per_s = 0;    // 0: there is none
  double read_bytes_per_s = 0;  // DRAM
  double copy_bytes_per_s = 0;  // DRAM, bytes read and bytes written
};

// About a second. `threads`: as the backend uses.
MeasuredRoofs measure_roofs(int threads);
// Products of the dtype by cuBLAS. Throws Error where there is no GPU, NVRTC or cuBLAS.
MeasuredRoofs measure_gpu_roofs(int device, DType dtype);

}  // namespace tilewise::cli
