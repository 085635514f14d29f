// The two products of forward_mma for fp32, by FMA. Scores lie as in mma.cuh: a thread owns rows
// l / 4 and l / 4 + 8 of each 16-row tile and columns 8 j + 2 (l % 4) + {0, 1}. Of O it owns
// columns 16 j + 4 (l % 4) + {0, 1, 2, 3}, so that a load of V is 16 bytes.
// Tensor cores have no fp32: three TF32 products come close, but their sums are truncated, which
// the fp32 bound does not allow over long rows (docs/forward-mma.md).
#pragma once

#include "kernels/ptx.cuh"
#include "shape.h"

namespace tilewise::gpu {

template <KernelSpec kSpec>
struct ProductFma {
  static constexpr ForwardShape kShape = shape_of(kSpec);
  static constexpr int kTiles = kSpec.consumers;
  static constexpr int kBlock = kSpec.block_n;

  // The column of O that o[..][4 n] and o[..][4 n + 2] belong to.
  TW_DEVICE static int column_of_pair(int n) {
    return n / 2 * 16 + 4 * (lane_id() % 4) + n % 2 * 2;
  }

  // s = Q K^T, four columns of Q and K at a time.
  TW_DEVICE static void scores(float (&s)[kTiles][kBlock / 2], const unsigned char* q,
                               const unsigned char* k) {
    const int lane = lane_id();
    q += lane / 4 * kShape.q_pitch;
    k += 2 * (lane % 4) * kShape.k_pitch;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < kBlock / 2; ++i) s[t][i] = 0.0f;
    }
#pragma unroll 2
    for (int column = 0; column < kSpec.qk_dim; column += 4) {
      Float4 a[kTiles][2];
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const int row = i / 2 * kTileRows + i % 2 * 8;
        a[i / 2][i % 2] = *reinterpret_cast<const Float4*>(q + row * kShape.q_pitch + column * 4);
      }
#pragma unroll
      for (int j = 0; j < kBlock / 4; ++j) {
        const int key = j / 2 * 8 + j % 2;
        const Float4 b = *reinterpret_cast<const Float4*>(k + key * kShape.k_pitch + column * 4);
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) {
          float& sum = s[i / 2][j / 2 * 4 + i % 2 * 2 + j % 2];
#pragma unroll
          for (int e = 0; e < 4; ++e) sum = __fmaf_rn(a[i / 2][i % 2].x[e], b.x[e], sum);
        }
      }
    }
  }

  // o += P V. Eight keys a turn, then the weights move down by eight keys: registers have no index,
  // and unrolling all keys costs seconds of compile time.
  TW_DEVICE static void outputs(float (&o)[kTiles][kSpec.v_dim / 2], float (&p)[kTiles][kBlock / 2],
                                const unsigned char* v) {
    v += lane_id() % 4 * 16;
#pragma unroll 1
    for (int key = 0; key < kBlock; key += 8) {
      add_keys(o, p, v + key * kShape.v_pitch);
#pragma unroll
      for (int i = 0; i < kTiles * (kBlock / 2 - 4); ++i) {
        const int t = i / (kBlock / 2 - 4);
        const int at = i % (kBlock / 2 - 4);
        p[t][at] = p[t][at + 4];
      }
    }
  }

  // The first eight keys of p; the weight of a key comes from the lane that holds it.
  TW_DEVICE static void add_keys(float (&o)[kTiles][kSpec.v_dim / 2],
                                 const float (&p)[kTiles][kBlock / 2], const unsigned char* v) {
    const int quad = lane_id() & ~3;
#pragma unroll
    for (int key = 0; key < 8; ++key) {
      float weight[kTiles][2];
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const float own = p[i / 2][i % 2 * 2 + key % 2];
        weight[i / 2][i % 2] = __shfl_sync(kAllLanes, own, quad + key / 2);
      }
#pragma unroll
      for (int n = 0; n < kSpec.v_dim / 16; ++n) {
        const Float4 b = *reinterpret_cast<const Float4*>(v + key * kShape.v_pitch + n * 64);
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float& sum = o[i / 2][8 * n + e / 2 * 4 + i % 2 * 2 + e % 2];
            sum = __fmaf_rn(weight[i / 2][i % 2], b.x[e], sum);
          }
        }
      }
    }
  }
};

}  // namespace tilewise::gpu
