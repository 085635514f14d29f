// The device words of src/gpu/kernels/ptx.cuh that standard_softmax.cuh uses, for the host: a
// thread of the operating system for each thread of a block. A shuffle or barrier that not all
// threads reach hangs here as it does on a GPU. bf16 only.
#pragma once

#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>

#include "spec.h"

struct ThreadIndex {
  unsigned x;
};
struct BlockIndex {
  unsigned x, y, z;
};
struct uint4 {
  unsigned x, y, z, w;
};

inline thread_local ThreadIndex threadIdx;
inline BlockIndex blockIdx;
inline BlockIndex gridDim;

// One block runs at a time.
struct HostBlock {
  std::barrier<>* all = nullptr;
  std::barrier<>* warps[32] = {};
  float lanes[1024] = {};
};
inline HostBlock host_block;

inline void __syncthreads() { host_block.all->arrive_and_wait(); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline float __shfl_xor_sync(unsigned /*lanes*/, float value, int mask) {
  std::barrier<>& warp = *host_block.warps[threadIdx.x / 32];
  host_block.lanes[threadIdx.x] = value;
  warp.arrive_and_wait();
  const float other = host_block.lanes[threadIdx.x ^ static_cast<unsigned>(mask)];
  warp.arrive_and_wait();
  return other;
}

#define __shared__ static
#define TW_DEVICE inline
using std::fmaxf;

namespace tilewise::gpu {

using Uint32 = unsigned;
constexpr Uint32 kAllLanes = 0xffffffffu;

inline int lane_id() { return static_cast<int>(threadIdx.x % 32); }
inline float exp2_approx(float x) { return std::exp2(x); }
inline float log2_approx(float x) { return std::log2(x); }

inline Uint32 bf16_of(float value) {
  const auto bits = std::bit_cast<Uint32>(value);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest even
}
template <Element>
Uint32 pack(float low, float high) {
  return bf16_of(low) | bf16_of(high) << 16;
}

}  // namespace tilewise::gpu
