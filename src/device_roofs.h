// What a GPU can do at most, measured: the roofs that attention is held against. Implemented by
// src/gpu/device_roofs.cc.
#pragma once

#include <cstdint>

#include "tilewise/tilewise.hpp"

namespace tilewise {

struct DeviceRoofs {
  int64_t multiprocessors = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes = 0;     // of one multiprocessor
  double flops_per_s = 0;       // products of large matrices of the dtype, random values
  double read_bytes_per_s = 0;  // far larger than the L2 cache
  double copy_bytes_per_s = 0;  // read and written
  double exps_per_s = 0;
};

// bf16 or fp16. Takes a second; throws Error without a GPU, NVRTC or cuBLAS.
DeviceRoofs measure_device_roofs(int device, DType dtype);

}  // namespace tilewise
