// Which rows and key blocks one warpgroup works on, and the mask of one 64 x block_n score tile.
// Who sees what is decided by semantics/mask.h; this file only turns it into blocks and registers.
#pragma once

#include "args.h"
#include "kernels/ptx.cuh"
#include "semantics/mask.h"
#include "shape.h"

namespace tilewise::gpu {

constexpr int kMaxConsumers = 4;

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

// One warpgroup's share of a unit: a 64-row tile and its key blocks, walked from end - 1 down to
// begin. At least one block, so that a tile whose rows see nothing still writes zeros.
struct alignas(16) Item {
  int tile;  // < 0: nothing to store
  int begin;
  int end;
  int free_begin;  // blocks in [free_begin, free_end) need no mask
  int free_end;
  int skip_right;  // blocks that stream by before end - 1
  int skip_left;   // and after begin
  int batch;       // < 0: no work left
  int head;
  int q_start;
  int q_len;
  int kv_len;
  int key_begin;  // row i sees keys [i + key_begin, i + key_end), cut to [0, kv_len)
  int key_end;
  int off;  // row i stands at key i + off
};

TW_DEVICE int saturate(Int64 value) {
  return static_cast<int>(semantics::clamp_to(value, -kMaxRows, kMaxRows));
}

// The key blocks that rows first..last need.
template <KernelSpec kSpec>
TW_DEVICE Item item_of_rows(const ForwardArgs& args, int q_len, int kv_len, int first, int last) {
  const semantics::Band band = band_of<kSpec>(args, q_len, kv_len);
  const semantics::KeyRange of_first = band.keys_of_row(first);
  const semantics::KeyRange of_last = band.keys_of_row(last);
  Item item{};
  item.begin = static_cast<int>(of_first.begin) / kSpec.block_n;
  item.end = max_of(ceil_div(static_cast<int>(of_last.end), kSpec.block_n), item.begin + 1);
  item.free_begin = ceil_div(static_cast<int>(of_last.begin), kSpec.block_n);
  item.free_end = static_cast<int>(of_first.end) / kSpec.block_n;
  item.key_begin = saturate(band.off - band.left);
  item.key_end = saturate(band.off + band.right + 1);
  item.off = saturate(band.off);
  return item;
}

template <KernelSpec kSpec>
TW_DEVICE Item item_of_tile(const ForwardArgs& args, int q_len, int kv_len, int tile) {
  const int first = max_of(tile, 0) * kTileRows;
  const int last = max_of(min_of(first + kTileRows, q_len) - 1, first);
  Item item = item_of_rows<kSpec>(args, q_len, kv_len, first, last);
  item.tile = tile;
  return item;
}

// Visible keys of the two rows that a thread holds: row and row + 8.
struct RowLimits {
  int begin[2];
  int end[2];
};

template <KernelSpec kSpec>
TW_DEVICE RowLimits limits_of_thread(const Item& item, int row, int kv_len) {
  RowLimits limits;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    limits.begin[i] = kSpec.bound_left ? max_of(row + 8 * i + item.key_begin, 0) : 0;
    limits.end[i] = kSpec.bound_right ? min_of(row + 8 * i + item.key_end, kv_len) : kv_len;
  }
  return limits;
}

// Scores of hidden keys become -inf: selected, never added, so their NaN cannot leak. `first_key`
// is the key of the thread's first column.
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
