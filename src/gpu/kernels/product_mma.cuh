// The two products of forward_mma for bf16 and fp16, by mma.sync. A warp has kTiles tiles of 16
// query rows; each matrix load of K and V feeds all of them. Tiles of Q, K and V lie in shared
// memory row by row, with a pitch that keeps matrix loads free of bank conflicts (shape.h).
#pragma once

#include "kernels/mma.cuh"
#include "shape.h"

namespace tilewise::gpu {

template <KernelSpec kSpec>
struct ProductMma {
  static constexpr ForwardShape kShape = shape_of(kSpec);
  static constexpr int kTiles = kSpec.consumers;
  static constexpr int kBlock = kSpec.block_n;
  static constexpr Element kElement = kSpec.element;
  // Steps of Q K^T that the compiler may interleave. With two row tiles all of them at once cost
  // ptxas 36 bytes of spills at d 128.
  static constexpr int kSteps = kTiles == 1 ? kSpec.qk_dim / 16 : 4;

  // The column of O that o[..][4 n] and o[..][4 n + 2] belong to.
  TW_DEVICE static int column_of_pair(int n) { return 8 * n + 2 * (lane_id() % 4); }

  // s = Q K^T. `q` is the warp's first row in the first 64-row tile.
  TW_DEVICE static void scores(float (&s)[kTiles][kBlock / 2], const unsigned char* q,
                               const unsigned char* k) {
    const int lane = lane_id();
    const Uint32 q_at = shared_address(q) + lane % 16 * kShape.q_pitch + lane / 16 * 16;
    const Uint32 k_at =
        shared_address(k) + (lane % 8 + lane / 16 * 8) * kShape.k_pitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < kBlock / 2; ++i) s[t][i] = 0.0f;
    }
#pragma unroll kSteps
    for (int step = 0; step < kSpec.qk_dim / 16; ++step) {
      Uint32 a[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        load_matrices(q_at + t * kTileRows * kShape.q_pitch + step * 32, a[t]);
      }
#pragma unroll
      for (int n = 0; n < kBlock / 16; ++n) {
        Uint32 b[4];  // keys 0..7: b[0], b[1]; keys 8..15: b[2], b[3]
        load_matrices(k_at + n * 16 * kShape.k_pitch + step * 32, b);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          mma_16x8x16<kElement>(s[t] + 8 * n, a[t], b[0], b[1]);
          mma_16x8x16<kElement>(s[t] + 8 * n + 4, a[t], b[2], b[3]);
        }
      }
    }
  }

  // o += P V.
  TW_DEVICE static void outputs(float (&o)[kTiles][kSpec.v_dim / 2],
                                const float (&p)[kTiles][kBlock / 2], const unsigned char* v) {
    const int lane = lane_id();
    const Uint32 v_at = shared_address(v) + lane % 16 * kShape.v_pitch + lane / 16 * 16;
#pragma unroll
    for (int step = 0; step < kBlock / 16; ++step) {
      Uint32 a[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = p[t] + 8 * step + 2 * i;
          a[t][i] = pack<kElement>(pair[0], pair[1]);
        }
      }
#pragma unroll
      for (int n = 0; n < kSpec.v_dim / 16; ++n) {
        Uint32 b[4];  // columns 0..7: b[0], b[1]; columns 8..15: b[2], b[3]
        load_transposed(v_at + step * 16 * kShape.v_pitch + n * 32, b);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          mma_16x8x16<kElement>(o[t] + 8 * n, a[t], b[0], b[1]);
          mma_16x8x16<kElement>(o[t] + 8 * n + 4, a[t], b[2], b[3]);
        }
      }
    }
  }
};

}  // namespace tilewise::gpu
