// Forward attention on Hopper: out = softmax(mask(scale * q k^T)) v, lse = log(sum(exp(scores))).
//
//   WG 0    warp 0: units, K tiles      warp 1: V tiles      warps 2, 3: Q tiles      (TMA)
//   WG 1..c one 64-row q tile each, all on the same stream of K and V blocks, last block first
//
//   overlapped:  | QK(n) .......... | softmax(n) ......... |     sequential:  | PV(n+1) QK(n) |
//                | PV(n+1) ................... | wait      |                  | softmax(n)    |
//
// Persistent: one CTA per SM takes units (schedule.cuh) until none is left. At an item's edge the
// next item's first QK is issued before this item's epilogue, which runs under it.
// Docs: docs/forward-sm90.md (barriers, budgets, what was tried).
#pragma once

#include "kernels/attend_sm90.cuh"
#include "kernels/layout_sm90.cuh"
#include "kernels/schedule.cuh"
#include "kernels/tma.cuh"

namespace tilewise::gpu {

// The loops of the loading warps only wait: copies of them buy nothing, and without "unroll 1" they
// were a fifth of the kernel's code.

// One tile of 64-column boxes, each `rows` x 128 bytes in shared memory.
TW_DEVICE void load_tile(const TensorMap& map, Uint32 shared, Barrier& full, int rows, int columns,
                         int row, int head, int slab) {
  arrive_expecting(full, rows * columns * 2);
  for (int column = 0; column < columns; column += kBoxColumns) {
    load_box(map, shared, full, column, row, head, slab);
    shared += rows * kBoxRowBytes;
  }
}

// Warp 0: hands out the units and loads their K blocks.
template <KernelSpec kSpec>
TW_DEVICE void load_k(const ForwardArgs& args, Shared<kSpec>& shared) {
  using S = Shape<kSpec>;
  prefetch_map(args.k);
  UnitDecoder<kSpec> decoder;
  UnitIndex<kSpec> indices;
  RingIndex<kSlots> slot;
  RingIndex<kSpec.k_stages> at;
  // These have work or registers besides, and with one copy ptxas spills in the K warp.
  constexpr int kCopies = kSpec.softcap || kSpec.varlen || kSpec.dropout ? 4 : 1;
  bool flipped = false;
  for (int index = blockIdx.x;; index = indices.after(args, index)) {
    Unit unit = decoder.decode(args, index);
    publish_unit<kSpec>(args, shared.slots, slot, unit, flipped);
    if (unit.batch < 0) return indices.close(args, index, decoder.units(args));
    flipped = !flipped;
    const int row0 = row_origin<kSpec>(args.kv_limit, unit.kv_len);
    const int slab = slab_of<kSpec>(unit.batch * args.k_batch_step, unit.kv_start, unit.kv_len);
    const int head = unit.head / args.heads_per_kv * args.k_head_step;
#pragma unroll kCopies
    for (int n = unit.end - 1; n >= unit.begin; --n) {
      if (lane_id() == 0) {
        wait(shared.k_empty[at.stage], at.phase ^ 1);
        load_tile(args.k, shared_address(shared.k[at.stage]), shared.k_full[at.stage], S::kBlock,
                  S::kQkColumns, row0 + n * S::kBlock, head, slab);
      }
      at.advance();
    }
    __syncwarp();
  }
}

// Keys behind the last one that any row of the sequence sees are no more read than keys behind its
// end: their weights are 0, but 0 * NaN is not. The host cuts the maps of plain tensors instead.
template <KernelSpec kSpec>
TW_DEVICE int visible_keys(const ForwardArgs& args, const Unit& unit) {
  if constexpr (!kSpec.varlen || !kSpec.bound_right) return unit.kv_len;
  const semantics::Band band = band_of<kSpec>(args, unit.q_len, unit.kv_len);
  return static_cast<int>(band.keys_of_row(unit.q_len - 1).end);
}

// Warp 1.
template <KernelSpec kSpec>
TW_DEVICE void load_v(const ForwardArgs& args, Shared<kSpec>& shared) {
  using S = Shape<kSpec>;
  prefetch_map(args.v);
  RingIndex<kSlots> slot;
  RingIndex<kSpec.v_stages> at;
  for (;;) {
    const Unit unit = read_unit(shared.slots, slot);
    if (unit.batch < 0) return;
    const int keys = visible_keys<kSpec>(args, unit);
    const int row0 = row_origin<kSpec>(args.kv_limit, keys);
    const int slab = slab_of<kSpec>(unit.batch * args.v_batch_step, unit.kv_start, keys);
    const int head = unit.head / args.heads_per_kv * args.v_head_step;
#pragma unroll 1
    for (int n = unit.end - 1; n >= unit.begin; --n) {
      if (lane_id() == 0) {
        wait(shared.v_empty[at.stage], at.phase ^ 1);
        load_tile(args.v, shared_address(shared.v[at.stage]), shared.v_full[at.stage], S::kBlock,
                  S::kVColumns, row0 + n * S::kBlock, head, slab);
      }
      at.advance();
    }
    __syncwarp();
  }
}

// Warps 2 and 3: the Q tiles of the even and the odd consumers.
template <KernelSpec kSpec>
TW_DEVICE void load_q(const ForwardArgs& args, Shared<kSpec>& shared, int first) {
  using S = Shape<kSpec>;
  prefetch_map(args.q);
  RingIndex<kSlots> slot;
  RingIndex<kSpec.q_buffers> at;
  for (bool flipped = false;; flipped = !flipped) {
    const Unit unit = read_unit(shared.slots, slot);
    if (unit.batch < 0) return;
    const int row0 = row_origin<kSpec>(args.q_limit, unit.q_len);
    const int slab = slab_of<kSpec>(unit.batch * args.q_batch_step, unit.q_start, unit.q_len);
    if (lane_id() == 0) {
#pragma unroll 1
      for (int wg = first; wg < kSpec.consumers; wg += 2) {
        const int tile = max_of(tile_of_consumer<kSpec>(unit, wg, flipped), 0);
        Barrier& full = shared.q_full[wg][at.stage];
        wait(shared.q_empty[wg][at.stage], at.phase ^ 1);
        load_tile(args.q, shared_address(shared.q[wg][at.stage]), full, kTileRows, S::kQkColumns,
                  row0 + tile * kTileRows, unit.head * args.q_head_step, slab);
      }
    }
    __syncwarp();
    at.advance();
  }
}

template <KernelSpec kSpec>
TW_DEVICE void forward_sm90(const ForwardArgs& args) {
  using S = Shape<kSpec>;
  extern __shared__ unsigned char dynamic_shared[];
  static_assert(sizeof(Shared<kSpec>) == S::kShape.shared_bytes);
  Shared<kSpec>& shared = *reinterpret_cast<Shared<kSpec>*>(dynamic_shared);
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  const int warp = warp_id();
  if (warp < 4) {
    shrink_registers<S::kShape.producer_registers>();
    if (warp == 0) {
      load_k(args, shared);
    } else if (warp == 1) {
      load_v(args, shared);
    } else {
      load_q(args, shared, warp - 2);
    }
  } else {
    grow_registers<S::kShape.consumer_registers>();
    Attend<kSpec> attend(args, shared, warp / 4 - 1, warp % 4);
    attend.run();
  }
}

}  // namespace tilewise::gpu
