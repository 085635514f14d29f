// Sizes that follow from a KernelSpec of the forward kernel: tiles, threads, registers, shared
// memory. Host and device compute them from the same lines; includes nothing else.
// The budget tables are in docs/forward-sm90.md and docs/forward-mma.md.
#pragma once

#include "spec.h"

namespace tilewise::gpu {

constexpr int kTileRows = 64;    // query rows of a consumer warpgroup: one wgmma
constexpr int kBoxColumns = 64;  // 16-bit columns of a TMA box: 128 bytes, one swizzle atom
constexpr int kStoreRows = 16;   // rows of an output box: one warp's share of a tile
constexpr int kBoxRowBytes = 128;
constexpr int kGroupThreads = 128;
constexpr int kSlots = 4;                 // units in flight between the K warp and the other roles
constexpr int kSlotBytes = 48 + 4 * 64;   // a Unit and four Items
constexpr int kWorkBytes = 48 + 64 + 16;  // forward_mma: its Unit, its Item, two pointers
constexpr int kMaxSharedBytes = 232448;
constexpr int kMaxRows = 1 << 29;  // of a sequence: row + offset stays an int

constexpr int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

struct ForwardShape {
  int threads;
  int qk_columns;     // head_dim in whole boxes
  int v_columns;      // value_dim in whole boxes
  int stage_columns;  // columns of O that are staged at once
  int q_bytes;        // one Q buffer of one warpgroup
  int k_bytes;        // one K stage
  int v_bytes;        // one V stage
  int stage_bytes;    // O staging of one warpgroup, 0 when its Q buffer serves
  int barrier_bytes;
  int shared_bytes;
  int blocks;   // CTAs of an SM that the registers must allow
  int q_pitch;  // forward_mma: bytes from row to row in shared memory
  int k_pitch;
  int v_pitch;
  int consumer_registers;
  int producer_registers;
};

// forward_sm90.
constexpr ForwardShape shape_of_sm90(const KernelSpec& spec) {
  ForwardShape shape{};
  shape.threads = kGroupThreads * (1 + spec.consumers);
  shape.qk_columns = round_up(spec.qk_dim, kBoxColumns);
  shape.v_columns = round_up(spec.v_dim, kBoxColumns);
  const bool own_staging = spec.q_buffers == 1;
  shape.stage_columns = own_staging ? round_up(shape.v_columns / 2, kBoxColumns) : shape.v_columns;
  const int q_columns =
      own_staging || shape.qk_columns > shape.v_columns ? shape.qk_columns : shape.v_columns;
  shape.q_bytes = kTileRows * q_columns * 2;
  shape.k_bytes = spec.block_n * shape.qk_columns * 2;
  shape.v_bytes = spec.block_n * shape.v_columns * 2;
  shape.stage_bytes = own_staging ? kTileRows * shape.stage_columns * 2 : 0;
  const int barriers =
      2 * (kSlots + spec.consumers * spec.q_buffers + spec.k_stages + spec.v_stages);
  shape.barrier_bytes = round_up(kSlots * kSlotBytes + barriers * 8, 1024);
  shape.shared_bytes = spec.consumers * (spec.q_buffers * shape.q_bytes + shape.stage_bytes) +
                       spec.k_stages * shape.k_bytes + spec.v_stages * shape.v_bytes +
                       shape.barrier_bytes;
  // setmaxnreg moves registers inside the CTA's own pool: threads x the count ptxas gave at launch.
  shape.consumer_registers = spec.consumers == 4 ? 112 : 232;
  shape.producer_registers = spec.consumers == 4 ? 32 : 40;
  if (spec.consumers == 3) {  // softcap: large scores take more registers
    shape.consumer_registers = spec.softcap ? 160 : 152;
    shape.producer_registers = spec.softcap ? 32 : 56;
  }
  shape.blocks = 1;
  return shape;
}

// forward_mma. Rows are 16 bytes longer than their data: 8 rows then lie in 8 different groups of
// four banks, for every head size, so matrix loads meet no conflict. O is staged in Q's rows.
constexpr ForwardShape shape_of_mma(const KernelSpec& spec) {
  ForwardShape shape{};
  const int bytes = bytes_of(spec.element);
  shape.threads = kGroupThreads;
  shape.qk_columns = spec.qk_dim;
  shape.v_columns = spec.v_dim;
  shape.q_pitch = (spec.qk_dim > spec.v_dim ? spec.qk_dim : spec.v_dim) * bytes + 16;
  shape.k_pitch = spec.qk_dim * bytes + 16;
  shape.v_pitch = spec.v_dim * bytes + 16;
  shape.q_bytes = kTileRows * spec.consumers * shape.q_pitch;
  shape.k_bytes = spec.block_n * shape.k_pitch;
  shape.v_bytes = spec.block_n * shape.v_pitch;
  shape.shared_bytes =
      shape.q_bytes + spec.k_stages * shape.k_bytes + spec.v_stages * shape.v_bytes + kWorkBytes;
  shape.blocks = 2;
  return shape;
}

constexpr ForwardShape shape_of(const KernelSpec& spec) {
  return spec.family == Family::kForwardMma ? shape_of_mma(spec) : shape_of_sm90(spec);
}

}  // namespace tilewise::gpu
