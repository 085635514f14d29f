// mbarriers and the rings built from them. A ring of n stages has one `full` and one `empty`
// barrier per stage; stage and phase run on over all tiles of a CTA and are never reset. The
// producer waits on `empty` with the inverted phase, so its first lap passes at once.
#pragma once

#include "kernels/ptx.cuh"

namespace tilewise::gpu {

struct Barrier {
  Uint64 state;
};

TW_DEVICE void init_barrier(Barrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals)
               : "memory");
}

// After all inits, before any use by another thread or by TMA.
TW_DEVICE void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

TW_DEVICE void arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}

TW_DEVICE void arrive_expecting(Barrier& barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}

TW_DEVICE void wait(Barrier& barrier, Uint32 phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(phase)
      : "memory");
}

// Position in a ring of kStages.
template <int kStages>
struct RingIndex {
  int stage = 0;
  Uint32 phase = 0;

  TW_DEVICE void advance() {
    if constexpr (kStages == 2) {
      phase ^= static_cast<Uint32>(stage);
      stage ^= 1;
    } else {
      const bool wraps = stage == kStages - 1;
      stage = wraps ? 0 : stage + 1;
      phase ^= static_cast<Uint32>(wraps);
    }
  }
};

// One arrival per warp: all lanes have finished their part when lane 0 arrives.
TW_DEVICE void arrive_warp(Barrier& barrier) {
  __syncwarp();
  if (lane_id() == 0) arrive(barrier);
}

}  // namespace tilewise::gpu
