// TMA: tiles between global and shared memory through a tensor map. Coordinates are (column, row,
// head, slab); slab is the batch, or the sequence's end in packed tensors. Tiles use the 128-byte
// swizzle: 64 columns of 16 bits a row, 16-byte chunk c of row r at chunk c ^ (r % 8).
#pragma once

#include "args.h"
#include "kernels/pipeline.cuh"

namespace tilewise::gpu {

TW_DEVICE void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

TW_DEVICE void load_box(const TensorMap& map, Uint32 shared, Barrier& full, int column, int row,
                        int head, int slab) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared),
      "l"(&map), "r"(shared_address(&full)), "r"(column), "r"(row), "r"(head), "r"(slab)
      : "memory");
}

TW_DEVICE void store_box(const TensorMap& map, Uint32 shared, int column, int row, int head,
                         int slab) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(shared), "r"(column), "r"(row), "r"(head), "r"(slab)
      : "memory");
}

TW_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// The shared memory behind all committed stores may be overwritten.
TW_DEVICE void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

TW_DEVICE void wait_stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace tilewise::gpu
