// KernelSpec: everything that is fixed when a GPU kernel is compiled. Its text is the kernel's
// identity: the same words are printed, hashed for the cache and pasted into the stub that NVRTC
// compiles, and all three come from the one field list below. Host and device code include this
// file, so it includes nothing. Docs: docs/jit.md
#pragma once

namespace tilewise::gpu {

enum class Family : int {
  kForwardSm90,  // wgmma and TMA; docs/forward-sm90.md
  kForwardMma,   // mma.sync (fp32: FMA) and cp.async, any layout; docs/forward-mma.md
};
enum class Element : int { kBf16, kFp16, kFp32 };

constexpr int bytes_of(Element element) { return element == Element::kFp32 ? 4 : 2; }

// How one consumer warpgroup orders its two products; the drawings are in docs/forward-sm90.md.
enum class LoopOrder : int {
  kSequential,  // P*V(n+1) and Q*K(n) back to back, then the softmax of block n
  kOverlapped,  // the softmax of block n runs while P*V(n+1) is still in flight
};

enum class Schedule : int {
  kStatic,   // unit index = block index + i * grid
  kDynamic,  // unit index from a counter in the workspace
};

struct KernelSpec {
  Family family = Family::kForwardSm90;
  Element element = Element::kBf16;
  LoopOrder order = LoopOrder::kOverlapped;
  Schedule schedule = Schedule::kDynamic;
  int qk_dim = 128;      // head_dim rounded up to 16
  int v_dim = 128;       // value_dim rounded up to 16
  int consumers = 2;     // 64-row query tiles of a CTA; forward_sm90 has a warpgroup for each
  int block_n = 128;     // key rows of one K or V tile
  int k_stages = 2;      // K tiles in flight
  int v_stages = 2;      // V tiles in flight
  int q_buffers = 2;     // 2: O is staged in the item's own Q buffer; 1: O has its own staging
  int bound_left = 0;    // 1: some keys left of a query's window are hidden
  int bound_right = 0;   // 1: some keys right of a query's window are hidden (causal)
  int varlen = 0;        // 1: packed sequences, lengths read from cu_seqlens
  int lse = 1;           // 1: write the log-sum-exp
  int direct_store = 0;  // 1: out is written element by element, not by TMA
  int softcap = 0;
  int alibi = 0;
  int sink = 0;
  int dropout = 0;

  friend constexpr bool operator==(const KernelSpec&, const KernelSpec&) = default;
};

// The one field list.
template <class Spec, class Visit>
constexpr void for_each_field(Spec& spec, Visit&& visit) {
  visit("family", spec.family);
  visit("element", spec.element);
  visit("order", spec.order);
  visit("schedule", spec.schedule);
  visit("qk_dim", spec.qk_dim);
  visit("v_dim", spec.v_dim);
  visit("consumers", spec.consumers);
  visit("block_n", spec.block_n);
  visit("k_stages", spec.k_stages);
  visit("v_stages", spec.v_stages);
  visit("q_buffers", spec.q_buffers);
  visit("bound_left", spec.bound_left);
  visit("bound_right", spec.bound_right);
  visit("varlen", spec.varlen);
  visit("lse", spec.lse);
  visit("direct_store", spec.direct_store);
  visit("softcap", spec.softcap);
  visit("alibi", spec.alibi);
  visit("sink", spec.sink);
  visit("dropout", spec.dropout);
}

}  // namespace tilewise::gpu
