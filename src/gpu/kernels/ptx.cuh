// One-instruction words that belong to no larger family: integer types, lane and thread ids,
// exp2, packing two floats, matrix stores, fences and register reallocation.
#pragma once

#include "spec.h"

namespace tilewise::gpu {

using Uint32 = unsigned int;
using Uint64 = unsigned long long;
using Int64 = long long;

#define TW_DEVICE __device__ __forceinline__

struct alignas(8) Float2 {
  float x[2];
};
struct alignas(16) Float4 {
  float x[4];
};

constexpr Uint32 kAllLanes = 0xffffffffu;

TW_DEVICE Uint32 shared_address(const void* pointer) {
  return static_cast<Uint32>(__cvta_generic_to_shared(pointer));
}

TW_DEVICE int lane_id() { return static_cast<int>(threadIdx.x & 31u); }

// The warp's number, told to the compiler as a warp-uniform value.
TW_DEVICE int warp_id() { return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x >> 5), 0); }

TW_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

TW_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

TW_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats to one register of two 16-bit values, `low` in bits 0..15.
template <Element kElement>
TW_DEVICE Uint32 pack(float low, float high) {
  Uint32 packed;
  if constexpr (kElement == Element::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// Four 8x8 matrices of 16-bit values to shared memory; lane l gives the address of row l % 8 of
// matrix l / 8.
TW_DEVICE void store_matrices(Uint32 address, Uint32 r0, Uint32 r1, Uint32 r2, Uint32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// A 16-byte word of global memory, read and exchanged as a whole (sm_90).
struct Word128 {
  Uint64 low;
  Uint64 high;
};
TW_DEVICE Word128 load_relaxed(const void* from) {
  Word128 word;
  asm volatile(
      "{\n"
      ".reg .b128 word;\n"
      "ld.relaxed.gpu.global.b128 word, [%2];\n"
      "mov.b128 {%0, %1}, word;\n"
      "}\n"
      : "=l"(word.low), "=l"(word.high)
      : "l"(__cvta_generic_to_global(from))
      : "memory");
  return word;
}
TW_DEVICE void exchange_if_equal(void* at, const Word128& expected, const Word128& wanted) {
  asm volatile(
      "{\n"
      ".reg .b128 expected, wanted, seen;\n"
      "mov.b128 expected, {%1, %2};\n"
      "mov.b128 wanted, {%3, %4};\n"
      "atom.relaxed.gpu.global.cas.b128 seen, [%0], expected, wanted;\n"
      "}\n" ::"l"(__cvta_generic_to_global(at)),
      "l"(expected.low), "l"(expected.high), "l"(wanted.low), "l"(wanted.high)
      : "memory");
}

// Makes this thread's ordinary shared-memory writes visible to TMA and wgmma.
TW_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int kRegisters>
TW_DEVICE void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
TW_DEVICE void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tilewise::gpu
