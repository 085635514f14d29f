// Shared memory of the forward kernel: tiles, barriers with who arrives and who waits, and the TMA
// coordinates of a sequence. Sizes come from shape.h; the budget table is in docs/forward-sm90.md.
#pragma once

#include "args.h"
#include "kernels/pipeline.cuh"
#include "kernels/schedule.cuh"
#include "shape.h"

namespace tilewise::gpu {

// Everything that follows from the spec (shape.h).
template <KernelSpec kSpec>
struct Shape {
  static constexpr ForwardShape kShape = shape_of(kSpec);
  static constexpr int kThreads = kShape.threads;
  static constexpr int kBlock = kSpec.block_n;
  static constexpr int kQkColumns = kShape.qk_columns;
  static constexpr int kVColumns = kShape.v_columns;
  static constexpr int kStageColumns = kShape.stage_columns;
  static constexpr int kStageBytes = kShape.stage_bytes;
  static constexpr bool kOwnStaging = kSpec.q_buffers == 1;

  static_assert(kSpec.consumers >= 2 && kSpec.consumers <= 4);
  static_assert(kBlock % 16 == 0 && kSpec.qk_dim % 16 == 0 && kSpec.v_dim % 16 == 0);
  static_assert(kSpec.qk_dim <= 256 && kSpec.v_dim <= 256);
  static_assert(kShape.shared_bytes <= kMaxSharedBytes);
};

template <int kBytes>
struct Staging {
  alignas(1024) unsigned char bytes[kBytes];
};
template <>
struct Staging<0> {};

template <KernelSpec kSpec>
struct Shared {
  static constexpr ForwardShape kShape = shape_of(kSpec);
  // [64, qk_dim], [block_n, qk_dim] and [block_n, v_dim] tiles, 128-byte swizzle.
  alignas(1024) unsigned char q[kSpec.consumers][kSpec.q_buffers][kShape.q_bytes];
  alignas(1024) unsigned char k[kSpec.k_stages][kShape.k_bytes];
  alignas(1024) unsigned char v[kSpec.v_stages][kShape.v_bytes];
  // [64, stage_columns] of O for each consumer, when the Q buffers do not serve.
  Staging<kSpec.consumers * kShape.stage_bytes> out;

  SlotRing slots;  // empty: 4 consumer warps each, the V warp, two Q warps
  Barrier q_full[kSpec.consumers][kSpec.q_buffers];   // TMA: the warpgroup's Q tile is there
  Barrier q_empty[kSpec.consumers][kSpec.q_buffers];  // its 4 warps: Q read and O stored
  Barrier k_full[kSpec.k_stages];                     // TMA: K block is there
  Barrier k_empty[kSpec.k_stages];                    // every consumer warp: QK has read it
  Barrier v_full[kSpec.v_stages];                     // TMA: V block is there
  Barrier v_empty[kSpec.v_stages];                    // every consumer warp: PV has read it
};

template <KernelSpec kSpec>
TW_DEVICE void init_barriers(Shared<kSpec>& shared) {
  constexpr int kConsumerWarps = 4 * kSpec.consumers;
  for (int i = 0; i < kSlots; ++i) {
    init_barrier(shared.slots.full[i], 1);
    init_barrier(shared.slots.empty[i], kConsumerWarps + 3);
  }
  for (int w = 0; w < kSpec.consumers; ++w) {
    for (int i = 0; i < kSpec.q_buffers; ++i) {
      init_barrier(shared.q_full[w][i], 1);
      init_barrier(shared.q_empty[w][i], 4);
    }
  }
  for (int i = 0; i < kSpec.k_stages; ++i) {
    init_barrier(shared.k_full[i], 1);
    init_barrier(shared.k_empty[i], kConsumerWarps);
  }
  for (int i = 0; i < kSpec.v_stages; ++i) {
    init_barrier(shared.v_full[i], 1);
    init_barrier(shared.v_empty[i], kConsumerWarps);
  }
  publish_barriers();
}

// TMA coordinates of a sequence's row 0 (args.h says why packed tensors count from the end).
template <KernelSpec kSpec>
TW_DEVICE int row_origin(int limit, int length) {
  return kSpec.varlen ? limit - length : 0;
}
template <KernelSpec kSpec>
TW_DEVICE int slab_of(int batch, int start, int length) {
  return kSpec.varlen ? start + length : batch;
}

}  // namespace tilewise::gpu
