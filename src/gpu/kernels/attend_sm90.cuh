// The consumer warpgroup of forward_sm90.cuh: one 64-row tile ("item") at a time, its key blocks
// from the last to the first. Per item:
//   1. QK of the first block (issued at the previous item's edge), its softmax
//   2. for each further block n: one step, overlapped or sequential
//   3. edge: last PV | next item's first QK | epilogue of this item under that QK
// Registers of a thread: s[block_n / 2] scores, o[v_dim / 2] output, p[block_n / 4] packed weights.
// Docs: docs/forward-sm90.md
#pragma once

#include "kernels/layout_sm90.cuh"
#include "kernels/schedule.cuh"
#include "kernels/softmax_tile.cuh"
#include "kernels/tile.cuh"
#include "kernels/tma.cuh"
#include "kernels/wgmma.cuh"

namespace tilewise::gpu {

template <KernelSpec kSpec>
struct Attend {
  using S = Shape<kSpec>;
  static constexpr Element kElement = kSpec.element;
  static constexpr int kBlock = kSpec.block_n;
  static constexpr bool kMasks = kSpec.bound_left || kSpec.bound_right;

  const ForwardArgs& args;
  Shared<kSpec>& shared;
  const int wg;    // which consumer
  const int warp;  // of the warpgroup, 0..3
  const float c;   // exponents are 2^(s c - reference)

  float s[kBlock / 2];
  float o[kSpec.v_dim / 2];
  Uint32 p[kBlock / 4];
  RowState rows;
  float scale_out[2];  // what the finished item's O is multiplied by

  Item item;

  RingIndex<kSlots> slot;
  RingIndex<kSpec.q_buffers> at_q;
  RingIndex<kSpec.k_stages> at_k;
  RingIndex<kSpec.v_stages> at_v;
  int stores_pending = 0;  // items whose O still lies in shared memory

  TW_DEVICE Attend(const ForwardArgs& args_, Shared<kSpec>& shared_, int wg_, int warp_)
      : args(args_), shared(shared_), wg(wg_), warp(warp_), c(args_.scale_log2) {}

  TW_DEVICE void run() {
    if constexpr (!kSpec.direct_store) prefetch_map(args.out);
    if (!next_item()) return;
    wait(shared.q_full[wg][at_q.stage], at_q.phase);
    skip_k(item.skip_right);
    wait(shared.k_full[at_k.stage], at_k.phase);
    issue_qk();
    wgmma_wait<0>();
    release_k();
    for (;;) {
      first_softmax();
      finish_store();
#pragma unroll
      for (int i = 0; i < kSpec.v_dim / 2; ++i) o[i] = 0.0f;
      skip_v(item.skip_right);
      walk_blocks();
      if (!edge()) break;
    }
    finish_store();
    wait_stores_done();
  }

  // Reads the next unit and finds this warpgroup's tile in it. False: no work is left.
  TW_DEVICE bool next_item() {
    item = read_item<kSpec>(args, shared.slots, slot, wg);
    return item.batch >= 0;
  }

  TW_DEVICE void walk_blocks() {
    for (int n = item.end - 2; n >= item.begin; --n) {
      if constexpr (kSpec.order == LoopOrder::kOverlapped) {
        step_overlapped(n);
      } else {
        step_sequential(n);
      }
    }
  }

  TW_DEVICE void step_overlapped(int n) {
    wait(shared.k_full[at_k.stage], at_k.phase);
    issue_qk();
    wait(shared.v_full[at_v.stage], at_v.phase);
    issue_pv();
    wgmma_wait<1>();
    release_k();
    // Packed into a second set while PV reads p: writing p now would serialise every wgmma (C7513).
    Uint32 next[kBlock / 4];
    float sum[2];
    float factor[2] = {1.0f, 1.0f};
    bool rescued = false;
    if (!take_tiny(next, sum, n)) {
      shape_scores(n, kMasks);
      exponentiate<kElement>(s, next, rows, c, sum);
      // This branch also keeps ptxas from moving the next wait up above the exps.
      rescued = __any_sync(kAllLanes, too_large<kElement>(sum));
      if (rescued) rescue(next, sum, factor);
    }
    rows.sum[0] += sum[0];
    rows.sum[1] += sum[1];
    drop(next, n);
    wgmma_wait<0>();
    release_v();
    if (rescued) scale_o(factor);
      // An operation that ptxas cannot see through: a plain copy would be folded away.
#pragma unroll
    for (int i = 0; i < kBlock / 4; ++i) p[i] = next[i] ^ args.zero;
  }

  TW_DEVICE void step_sequential(int n) {
    wait(shared.v_full[at_v.stage], at_v.phase);
    wait(shared.k_full[at_k.stage], at_k.phase);
    issue_pv();
    issue_qk();
    wgmma_wait<1>();
    release_v();
    wgmma_wait<0>();
    release_k();
    float sum[2];
    if (!take_tiny(p, sum, n)) {
      shape_scores(n, kMasks);
      exponentiate<kElement>(s, p, rows, c, sum);
      if (__any_sync(kAllLanes, too_large<kElement>(sum))) {
        float factor[2];
        rescue(p, sum, factor);
        scale_o(factor);
      }
    }
    rows.sum[0] += sum[0];
    rows.sum[1] += sum[1];
    drop(p, n);
  }

  // Last PV of this item, first QK of the next one, epilogue. False: no work is left.
  TW_DEVICE bool edge() {
    if constexpr (S::kOwnStaging) arrive_warp(shared.q_empty[wg][at_q.stage]);
    wait(shared.v_full[at_v.stage], at_v.phase);
    issue_pv();
    skip_k(item.skip_left);
    const Item done = item;
    const int done_q = at_q.stage;
    at_q.advance();
    const bool more = next_item();
    if (more) {
      wait(shared.q_full[wg][at_q.stage], at_q.phase);
      skip_k(item.skip_right);
      wait(shared.k_full[at_k.stage], at_k.phase);
    }
    issue_qk();  // without a next item: a product nobody reads
    wgmma_wait<1>();
    release_v();
    skip_v(done.skip_left);
    finish_item(done, done_q);
    wgmma_wait<0>();
    if (more) release_k();
    return more;
  }

  // Softmax of an item's first block, from the true maximum. Nothing comes over from the item
  // before: which one that was is chance, and results must repeat bit for bit.
  TW_DEVICE void first_softmax() {
    const int n = item.end - 1;
    shape_scores(n, true);
    rows.max[0] = rows.max[1] = kNoMaximum;
    raise_maximum<kElement>(s, rows, 0, c);
    raise_maximum<kElement>(s, rows, 1, c);
    exponentiate_exactly<kElement>(s, p, rows, c, rows.sum);
    drop(p, n);
  }

  TW_DEVICE bool hides(int n) const {
    return n >= item.free_end || (kSpec.bound_left && n < item.free_begin);
  }

  // Softcap where nothing is hidden and all scores are tiny: their weights. False: a score is not,
  // or a sum left the range, and s is as it was.
  TW_DEVICE bool take_tiny(Uint32 (&weights)[kBlock / 4], float (&sum)[2], int n) {
    if constexpr (!kSpec.softcap || kSpec.alibi) return false;
    if ((kMasks && hides(n)) || !all_tiny(s, args.softcap_terms)) return false;
    exponentiate_tiny<kElement>(s, weights, rows, args.softcap_terms, sum);
    return !__any_sync(kAllLanes, too_large<kElement>(sum));
  }

  // Softcap, ALiBi and mask, in this order (contracts: Mathematics). One copy of the code for free
  // and masked blocks: a test a block costs nothing that shows, a second step doubles the time that
  // ptxas takes.
  TW_DEVICE void shape_scores(int n, bool may_hide) {
    if constexpr (kSpec.softcap) cap_scores(s, args.score_scale, args.softcap_terms);
    if constexpr (kSpec.alibi) {
      const float scale = kSpec.softcap ? 1.0f : args.score_scale;
      const float slope = args.slopes[item.batch * args.slopes_batch + item.head];
      const int distance = first_row(item) + item.off - first_key(n);
      add_alibi(s, scale, slope, static_cast<float>(distance));
    }
    if (may_hide && hides(n)) {
      const RowLimits limits = limits_of_thread<kSpec>(item, first_row(item), item.kv_len);
      mask_scores<kSpec.bound_left != 0>(s, limits, first_key(n));
    }
  }

  TW_DEVICE int first_row(const Item& of) const {
    return max_of(of.tile, 0) * kTileRows + 16 * warp + lane_id() / 4;
  }
  TW_DEVICE int first_key(int n) const { return n * kBlock + 2 * (lane_id() % 4); }

  TW_DEVICE void drop(Uint32 (&weights)[kBlock / 4], int n) {
    if constexpr (kSpec.dropout) {
      const int head = item.batch * args.q_heads + item.head;
      drop_weights(weights, args.dropout, head, first_row(item), first_key(n));
    }
  }

  // A sum left the safe range: raise the maxima, compute the weights again.
  TW_DEVICE void rescue(Uint32 (&weights)[kBlock / 4], float (&sum)[2], float (&factor)[2]) {
    factor[0] = raise_maximum<kElement>(s, rows, 0, c);
    factor[1] = raise_maximum<kElement>(s, rows, 1, c);
    rows.sum[0] *= factor[0];
    rows.sum[1] *= factor[1];
    exponentiate_exactly<kElement>(s, weights, rows, c, sum);
  }

  TW_DEVICE void scale_o(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kSpec.v_dim / 2; ++i) o[i] *= factor[(i / 2) % 2];
  }

  // s = Q K^T for the K block at at_k; 64 x block_n x qk_dim.
  TW_DEVICE void issue_qk() {
    const Uint64 q = row_tile_descriptor(shared_address(shared.q[wg][at_q.stage]));
    const Uint64 k = row_tile_descriptor(shared_address(shared.k[at_k.stage]));
    wgmma_fence();
    // Where O takes 104 registers and more, ptxas keeps the descriptors of one statement a box
    // without spilling; for smaller heads single steps are 2 % faster.
    constexpr int kStep = kSpec.v_dim > 192 && kSpec.qk_dim % kBoxColumns == 0 ? 4 : 1;
#pragma unroll
    for (int i = 0; i < kSpec.qk_dim / 16; i += kStep) {
      const int step = (i % 4) * 32;
      const Uint64 q_step = q + (i / 4 * kTileRows * kBoxRowBytes + step) / 16;
      const Uint64 k_step = k + (i / 4 * kBlock * kBoxRowBytes + step) / 16;
      if constexpr (kStep == 4) {
        wgmma_shared_box<kBlock, kElement>(s, q_step, k_step, i > 0);
      } else {
        wgmma_shared<kBlock, kElement>(s, q_step, k_step, i > 0);
      }
    }
    wgmma_commit();
  }

  // o += P V for the V block at at_v; 64 x v_dim x block_n.
  TW_DEVICE void issue_pv() {
    const Uint64 v = column_tile_descriptor<kBlock>(shared_address(shared.v[at_v.stage]));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBlock / 16; ++i) {
      wgmma_registers<kSpec.v_dim, kElement>(o, p + 4 * i, v + i * 16 * kBoxRowBytes / 16);
    }
    wgmma_commit();
  }

  TW_DEVICE void release_k() {
    arrive_warp(shared.k_empty[at_k.stage]);
    at_k.advance();
  }
  TW_DEVICE void release_v() {
    arrive_warp(shared.v_empty[at_v.stage]);
    at_v.advance();
  }

  // Blocks that other tiles of the unit need and this one does not.
  TW_DEVICE void skip_k(int count) {
    if constexpr (kMasks) {
#pragma unroll 1
      for (; count > 0; --count) {
        wait(shared.k_full[at_k.stage], at_k.phase);
        release_k();
      }
    }
  }
  TW_DEVICE void skip_v(int count) {
    if constexpr (kMasks) {
#pragma unroll 1
      for (; count > 0; --count) {
        wait(shared.v_full[at_v.stage], at_v.phase);
        release_v();
      }
    }
  }

  // Row sums, sink, LSE, and the first part of O (all of it when the Q buffer is the staging).
  TW_DEVICE void finish_item(const Item& done, int done_q) {
    float lse[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = quad_sum(rows.sum[row]);
      float reference = fmaxf(rows.max[row] * c, kNoMaximum) - Headroom<kElement>::kLift;
      float factor = 1.0f;
      bool only_sink = false;
      if constexpr (kSpec.sink) {
        const float sink = args.sink[done.head] * kLog2E;
        const float top = fmaxf(reference, sink);
        factor = exp2_approx(reference - top);
        sum *= factor;
        only_sink = sum == 0.0f;
        sum += exp2_approx(sink - top);
        reference = top;
      }
      if constexpr (kSpec.dropout) factor *= args.dropout.keep_scale;
      scale_out[row] = factor * reciprocal_approx(sum);
      lse[row] = only_sink ? args.sink[done.head] : (reference + log2_approx(sum)) * kLn2;
      if (sum == 0.0f) scale_out[row] = 0.0f;
    }
    clear_empty_rows();
    staged = done;
    stage_q = done_q;
    if constexpr (kSpec.direct_store) {
      store_elements(done);
    } else {
      stage_columns<0, S::kStageColumns>();
    }
    stores_pending = 1;
    if constexpr (kSpec.lse) store_lse(done, lse);
  }

  // A row that saw nothing is zero even where 0 * V is not.
  TW_DEVICE void clear_empty_rows() {
    const bool empty[2] = {scale_out[0] == 0.0f, scale_out[1] == 0.0f};
    if (__any_sync(kAllLanes, empty[0] || empty[1])) {
#pragma unroll
      for (int i = 0; i < kSpec.v_dim / 2; ++i) {
        if (empty[(i / 2) % 2]) o[i] = 0.0f;
      }
    }
  }

  // Columns [kBegin, kEnd) of O: registers -> this warp's 16 rows of the staging tile -> TMA.
  template <int kBegin, int kEnd>
  TW_DEVICE void stage_columns() {
    constexpr int kColumns = kEnd < kSpec.v_dim ? kEnd : kSpec.v_dim;
    Uint32 base = warp * kStoreRows * kBoxRowBytes;
    if constexpr (S::kOwnStaging) {
      base += shared_address(&shared.out) + wg * S::kStageBytes;
    } else {
      base += shared_address(shared.q[wg][stage_q]);
    }
    const int lane = lane_id();
    const int matrix = lane / 8;  // rows 0-7 and 8-15 of two neighbouring n8 blocks
    const int row = lane % 8 + 8 * (matrix % 2);
    if constexpr (S::kOwnStaging) {
      if (lane == 0) wait_stores_read();
      __syncwarp();
    }
#pragma unroll
    for (int column = kBegin; column < kColumns; column += 16) {
      Uint32 r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = o + column / 2 + 2 * i;
        r[i] = pack<kElement>(pair[0] * scale_out[i % 2], pair[1] * scale_out[i % 2]);
      }
      const int local = column - kBegin;
      const int chunk = local % kBoxColumns / 8 + matrix / 2;
      const Uint32 address = base + local / kBoxColumns * kTileRows * kBoxRowBytes +
                             row * kBoxRowBytes + ((chunk ^ (lane % 8)) * 16);
      store_matrices(address, r[0], r[1], r[2], r[3]);
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0 && staged.tile >= 0) {
      const int origin = row_origin<kSpec>(args.q_limit, staged.q_len);
      const int slab = slab_of<kSpec>(staged.batch, staged.q_start, staged.q_len);
      const int out_row = origin + staged.tile * kTileRows + warp * kStoreRows;
      for (int column = kBegin; column < kColumns; column += kBoxColumns) {
        const Uint32 from = base + (column - kBegin) / kBoxColumns * kTileRows * kBoxRowBytes;
        store_box(args.out, from, column, out_row, staged.head, slab);
      }
      commit_stores();
    }
  }

  // O straight from registers, for outputs that TMA cannot write exactly.
  TW_DEVICE void store_elements(const Item& done) {
    if (done.tile < 0) return;
    const RowSource& out = args.out_rows;
    unsigned short* rows = static_cast<unsigned short*>(out.data) + done.head * out.head +
                           (kSpec.varlen ? done.q_start * out.row : done.batch * out.batch);
#pragma unroll
    for (int i = 0; i < kSpec.v_dim / 2; ++i) {
      const int row = first_row(done) + 8 * ((i / 2) % 2);
      const int column = 8 * (i / 4) + 2 * (lane_id() % 4) + i % 2;
      if (row < done.q_len && column < out.columns) {
        const Uint32 bits = pack<kElement>(o[i] * scale_out[(i / 2) % 2], 0.0f);
        rows[row * out.row + column] = static_cast<unsigned short>(bits);
      }
    }
  }

  // Runs after the next item's first softmax, when the store has long been read.
  TW_DEVICE void finish_store() {
    if (!stores_pending) return;
    stores_pending = 0;
    if constexpr (S::kOwnStaging) {
      if constexpr (S::kStageColumns < kSpec.v_dim && !kSpec.direct_store) {
        stage_columns<S::kStageColumns, S::kVColumns>();
      }
    } else {
      if (lane_id() == 0) {
        wait_stores_read();
        arrive(shared.q_empty[wg][stage_q]);
      }
      __syncwarp();
    }
  }

  TW_DEVICE void store_lse(const Item& done, const float (&lse)[2]) {
    const int lane = lane_id();
    if (done.tile < 0 || lane % 4 != 0) return;
    const int first = first_row(done);
    float* out = args.lse + done.head * args.lse_head +
                 (kSpec.varlen ? static_cast<Int64>(done.q_start) : done.batch * args.lse_batch);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (first + 8 * row < done.q_len) out[first + 8 * row] = lse[row];
    }
  }

  Item staged;
  int stage_q;
};

}  // namespace tilewise::gpu
