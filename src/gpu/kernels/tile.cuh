// Which rows and key blocks one warpgroup works on, and the mask of one 64 x block_n score tile.
// Who sees what is decided by semantics/mask.h; this file only turns it into blocks and registers.
#pragma once

#include "args.h"
#include "kernels/ptx.cuh"
#include "semantics/mask.h"
#include "shape.h"

namespace tilewise::gpu {

TW_DEVICE int ceil_div(int a, int b) { return (a + b - 1) / b; }
TW_DEVICE int min_of(int a, int b) { return a < b ? a : b; }
TW_DEVICE int max_of(int a, int b) { return a > b ? a : b; }

// The band of one sequence, with the sides that the spec declares open folded away.
template <KernelSpec kSpec>
TW_DEVICE semantics::Band band_of(const ForwardArgs& args, int q_len, int kv_len) {
  semantics::Band band = semantics::make_band(args.mask, q_len, kv_len);
  if constexpr (!kSpec.bound_left) band.left = semantics::kUnbounded;
  if constexpr (!kSpec.bound_right) band.right = semantics::kUnbounded;
  return band;
}

// Key blocks of a 64-row tile, walked from end - 1 down to begin. At least one block, so that a
// tile whose rows see nothing still passes through the loop and writes zeros.
struct BlockRange {
  int begin;       // first block
  int end;         // one past the last block
  int free_begin;  // blocks in [free_begin, free_end) need no mask
  int free_end;
};

template <int kBlock>
TW_DEVICE BlockRange blocks_of_tile(const semantics::Band& band, int tile) {
  const int first = tile * kTileRows;
  const int last = max_of(min_of(first + kTileRows, static_cast<int>(band.q_len)) - 1, first);
  const semantics::KeyRange of_first = band.keys_of_row(first);
  const semantics::KeyRange of_last = band.keys_of_row(last);
  BlockRange blocks;
  blocks.begin = static_cast<int>(of_first.begin) / kBlock;
  blocks.end = max_of(ceil_div(static_cast<int>(of_last.end), kBlock), blocks.begin + 1);
  blocks.free_begin = ceil_div(static_cast<int>(of_last.begin), kBlock);
  blocks.free_end = static_cast<int>(of_first.end) / kBlock;
  return blocks;
}

// Visible keys of the two rows that a thread holds, relative to its first column in block 0.
struct RowLimits {
  int begin[2];
  int end[2];
};

TW_DEVICE RowLimits limits_of_thread(const semantics::Band& band, int first_row) {
  const int lane = lane_id();
  const int row = first_row + lane / 4;
  RowLimits limits;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const semantics::KeyRange keys = band.keys_of_row(row + 8 * i);
    limits.begin[i] = static_cast<int>(keys.begin) - 2 * (lane % 4);
    limits.end[i] = static_cast<int>(keys.end) - 2 * (lane % 4);
  }
  return limits;
}

// Scores of hidden keys become -inf: selected, never added, so their NaN cannot leak.
template <bool kLeft, int kCount>
TW_DEVICE void mask_scores(float (&s)[kCount], const RowLimits& limits, int first_key) {
  const float kHidden = __int_as_float(static_cast<int>(0xff800000u));  // -inf
  const int end[2] = {limits.end[0] - first_key, limits.end[1] - first_key};
  const int begin[2] = {limits.begin[0] - first_key, limits.begin[1] - first_key};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = 8 * (i / 4) + i % 2;
    const int row = (i / 2) % 2;
    bool visible = column < end[row];
    if constexpr (kLeft) visible = visible && column >= begin[row];
    s[i] = visible ? s[i] : kHidden;
  }
}

}  // namespace tilewise::gpu
