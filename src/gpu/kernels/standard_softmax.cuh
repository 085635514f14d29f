// The middle pass of standard attention: masks and normalises the rows of a score matrix that lies
// in memory, in place. One block a row; the row stays in registers, so each score is read once and
// each weight written once, 16 bytes at a time.
//
//   matrix [b, h, q, row_stride], scores already scaled; row_stride a multiple of 8, kv <=
//   row_stride lse    [b, h, q] or null
#pragma once

#include "kernels/ptx.cuh"
#include "semantics/mask.h"
#include "spec.h"

namespace tilewise::gpu {

template <Element kElement>
TW_DEVICE float float_of(Uint32 bits) {
  if constexpr (kElement == Element::kBf16) {
    return __uint_as_float(bits << 16);
  } else {
    float value;
    asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(bits));
    return value;
  }
}

// Over the block; every thread gets the result.
template <int kThreads, class Combine>
TW_DEVICE float block_reduced(float value, Combine combine) {
  __shared__ float s_warp[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  // Not warp_id(): its shuffle would wait for the lanes that are not here.
  if (lane_id() == 0) s_warp[threadIdx.x >> 5] = value;
  __syncthreads();
  value = s_warp[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) value = combine(value, s_warp[warp]);
  __syncthreads();
  return value;
}

template <Element kElement, int kThreads, int kVectors>
TW_DEVICE void standard_softmax(unsigned short* g_matrix, float* g_lse, long long lse_batch,
                                long long lse_head, semantics::MaskRule rule, int q_len, int kv_len,
                                int row_stride) {
  constexpr float kLog2E = 1.4426950408889634f;
  const float infinity = __uint_as_float(0x7f800000u);
  const int row = static_cast<int>(blockIdx.x);
  const semantics::KeyRange keys = semantics::make_band(rule, q_len, kv_len).keys_of_row(row);
  const long long line = static_cast<long long>(blockIdx.z * gridDim.y + blockIdx.y) * q_len + row;
  uint4* const g_row = reinterpret_cast<uint4*>(g_matrix + line * row_stride);
  float scores[kVectors][8];
  float maximum = -infinity;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = v * kThreads + static_cast<int>(threadIdx.x);
    uint4 packed = {0, 0, 0, 0};
    if (at * 8 < row_stride) packed = g_row[at];
    const Uint32 words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const Uint32 bits = i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16;
      const int key = at * 8 + i;
      const bool visible = key >= keys.begin && key < keys.end;
      scores[v][i] = visible ? float_of<kElement>(bits) * kLog2E : -infinity;
      maximum = fmaxf(maximum, scores[v][i]);
    }
  }
  maximum = block_reduced<kThreads>(maximum, [](float a, float b) { return fmaxf(a, b); });
  const float subtracted = maximum == -infinity ? 0 : maximum;
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      scores[v][i] = exp2_approx(scores[v][i] - subtracted);
      sum += scores[v][i];
    }
  }
  sum = block_reduced<kThreads>(sum, [](float a, float b) { return a + b; });
  const float factor = sum > 0 ? 1 / sum : 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = v * kThreads + static_cast<int>(threadIdx.x);
    Uint32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = pack<kElement>(scores[v][2 * i] * factor, scores[v][2 * i + 1] * factor);
    }
    if (at * 8 < row_stride) g_row[at] = {words[0], words[1], words[2], words[3]};
  }
  if (g_lse != nullptr && threadIdx.x == 0) {
    const float lse = sum > 0 ? (maximum + log2_approx(sum)) / kLog2E : -infinity;
    g_lse[blockIdx.z * lse_batch + blockIdx.y * lse_head + row] = lse;
  }
}

}  // namespace tilewise::gpu
