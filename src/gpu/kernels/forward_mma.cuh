// Forward attention on any GPU from sm_80 on: out = softmax(mask(scale * q k^T)) v and
// lse = log(sum(exp(scores))), for bf16, fp16 (mma.sync) and fp32 (FMA), any strides.
//
//   CTA: 4 warps, consumers x 64 query rows of one head; of each 64 rows a warp has 16
//
//   copies   | Q K(n) V(n) | K(n-1) V(n-1) ................... | K(n-2) V(n-2) ...
//   4 warps               | S = Q K^T | softmax | O += P V     | S = Q K^T | ...
//                         ^ one barrier a block: the copies of block n have landed, and nobody
//                           reads the other stage any more
//
// Key blocks are walked from the last one to the first. Docs: docs/forward-mma.md
#pragma once

#include "kernels/product_fma.cuh"
#include "kernels/product_mma.cuh"
#include "kernels/rows.cuh"
#include "kernels/schedule.cuh"
#include "kernels/softmax_online.cuh"
#include "kernels/tile.cuh"

namespace tilewise::gpu {

template <KernelSpec kSpec>
struct SharedMma {
  static constexpr ForwardShape kShape = shape_of(kSpec);
  // Rows of q_pitch, k_pitch and v_pitch bytes. O is staged in the rows of Q.
  alignas(16) unsigned char q[kShape.q_bytes];                  // [64 consumers, qk_dim]
  alignas(16) unsigned char k[kSpec.k_stages][kShape.k_bytes];  // [block_n, qk_dim]
  alignas(16) unsigned char v[kSpec.v_stages][kShape.v_bytes];  // [block_n, v_dim]
  // What is being worked on. Here and not in registers: d 128 has none to spare.
  Unit unit;
  Item item;
  const Value<kSpec>* k_rows;  // key 0 of the unit's sequence and head
  const Value<kSpec>* v_rows;
};

template <bool kFma, KernelSpec kSpec>
struct ProductOf {
  using Type = ProductMma<kSpec>;
};
template <KernelSpec kSpec>
struct ProductOf<true, kSpec> {
  using Type = ProductFma<kSpec>;
};

// One unit: consumers x 64 query rows of one head against the key blocks that they see.
template <KernelSpec kSpec>
struct AttendMma {
  using Product = typename ProductOf<kSpec.element == Element::kFp32, kSpec>::Type;
  static constexpr ForwardShape kShape = shape_of(kSpec);
  static constexpr Element kElement = kSpec.element;
  static constexpr int kTiles = kSpec.consumers;
  static constexpr int kBlock = kSpec.block_n;
  static constexpr int kRows = kTiles * kTileRows;
  static constexpr int kThreads = kShape.threads;

  static_assert(kSpec.qk_dim % 16 == 0 && kSpec.v_dim % 16 == 0);
  static_assert(kSpec.qk_dim <= 256 && kSpec.v_dim <= 256);
  static_assert(kBlock % (kElement == Element::kFp32 ? 8 : 16) == 0);
  static_assert(kSpec.k_stages == 2 && kSpec.v_stages == 2);
  static_assert(sizeof(SharedMma<kSpec>) == kShape.shared_bytes);

  const ForwardArgs& args;
  SharedMma<kSpec>& shared;
  const Unit& unit;
  const Item& item;
  const int warp = warp_id();
  const float c;  // weights are 2^((s - maximum) c)

  float s[kTiles][kBlock / 2];
  float o[kTiles][kSpec.v_dim / 2];
  OnlineRows rows[kTiles];

  TW_DEVICE AttendMma(const ForwardArgs& args_, SharedMma<kSpec>& shared_)
      : args(args_), shared(shared_), unit(shared_.unit), item(shared_.item), c(args_.scale_log2) {}

  // Below 0 when the unit is not full.
  TW_DEVICE static int first_row_of(const Unit& of) {
    return (of.top_tile + 1 - kTiles) * kTileRows;
  }

  TW_DEVICE void run() {
    load_rows<kRows, kSpec.qk_dim, kShape.q_pitch, kThreads>(
        shared.q, args.q_rows, rows_of<kSpec>(args.q_rows, unit.batch, unit.q_start, unit.head),
        first_row_of(unit), unit.q_len);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < kSpec.v_dim / 2; ++i) o[t][i] = 0.0f;
    }
#pragma unroll 1
    for (int n = item.end;; --n) {
      if (n > item.begin) load_block(n - 1);
      if (n < item.end) step(n);
      if (n == item.begin) break;
      wait_copies();
      __syncthreads();
    }
    finish();
  }

  TW_DEVICE void load_block(int n) {
    const int stage = n % 2;
    load_rows<kBlock, kSpec.qk_dim, kShape.k_pitch, kThreads>(
        shared.k[stage], args.k_rows, shared.k_rows, n * kBlock, unit.kv_len);
    load_rows<kBlock, kSpec.v_dim, kShape.v_pitch, kThreads>(
        shared.v[stage], args.v_rows, shared.v_rows, n * kBlock, unit.kv_len);
  }

  TW_DEVICE void step(int n) {
    const int stage = n % 2;
    Product::scores(s, shared.q + 16 * warp * kShape.q_pitch, shared.k[stage]);
    shape_scores(n);
    float factor[kTiles][2];
    bool moved = false;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      online_softmax<kElement>(s[t], rows[t], c, factor[t]);
      moved = moved || factor[t][0] != 1.0f || factor[t][1] != 1.0f;
    }
    if (__any_sync(kAllLanes, moved)) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < kSpec.v_dim / 2; ++i) o[t][i] *= factor[t][(i / 2) % 2];
      }
    }
    if constexpr (kSpec.dropout) {
      const int head = unit.batch * args.q_heads + unit.head;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        drop_scores(s[t], args.dropout, head, first_row(t), first_key(n));
      }
    }
    Product::outputs(o, s, shared.v[stage]);
  }

  // Softcap, ALiBi and mask, in this order (contracts: Mathematics).
  TW_DEVICE void shape_scores(int n) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if constexpr (kSpec.softcap) cap_scores(s[t], args.score_scale, args.softcap_terms);
      if constexpr (kSpec.alibi) {
        const float scale = kSpec.softcap ? 1.0f : args.score_scale;
        const float slope = args.slopes[unit.batch * args.slopes_batch + unit.head];
        const int distance = first_row(t) + item.off - first_key(n);
        add_alibi(s[t], scale, slope, static_cast<float>(distance));
      }
    }
    if (n < item.free_end && (!kSpec.bound_left || n >= item.free_begin)) return;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const RowLimits limits = limits_of_thread<kSpec>(item, first_row(t), unit.kv_len);
      mask_scores<kSpec.bound_left != 0>(s[t], limits, first_key(n));
    }
  }

  // Row and key of a thread's first element in tile t and block n.
  TW_DEVICE int first_row(int t) const {
    return first_row_of(unit) + t * kTileRows + 16 * warp + lane_id() / 4;
  }
  TW_DEVICE int first_key(int n) const { return n * kBlock + 2 * (lane_id() % 4); }

  // O / l to this warp's own rows of the Q tile, and from there to memory; the LSE.
  TW_DEVICE void finish() {
    __syncwarp();
    float sink_log2 = minus_infinity();
    if constexpr (kSpec.sink) sink_log2 = args.sink[unit.head] * kLog2E;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      unsigned char* tile = shared.q + (t * kTileRows + 16 * warp) * kShape.q_pitch;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        RowResult result = finish_row<kElement>(rows[t].max[row], rows[t].sum[row], c, sink_log2);
        store_lse(first_row(t) + 8 * row, result.lse);
        if constexpr (kSpec.dropout) result.scale *= args.dropout.keep_scale;
        stage_row(tile + (lane_id() / 4 + 8 * row) * kShape.q_pitch, t, row, result.scale);
      }
      __syncwarp();
      store_rows<16, kSpec.v_dim, kShape.q_pitch>(
          tile, args.out_rows, rows_of<kSpec>(args.out_rows, unit.batch, unit.q_start, unit.head),
          first_row_of(unit) + t * kTileRows + 16 * warp, unit.q_len);
    }
  }

  // A row that saw nothing is zero even where 0 * V is not.
  TW_DEVICE void stage_row(unsigned char* to, int t, int row, float scale) {
#pragma unroll
    for (int n = 0; n < kSpec.v_dim / 8; ++n) {
      const float* pair = o[t] + 4 * n + 2 * row;
      const float low = scale == 0.0f ? 0.0f : pair[0] * scale;
      const float high = scale == 0.0f ? 0.0f : pair[1] * scale;
      const int column = Product::column_of_pair(n);
      if constexpr (kElement == Element::kFp32) {
        *reinterpret_cast<Float2*>(to + column * 4) = Float2{{low, high}};
      } else {
        *reinterpret_cast<Uint32*>(to + column * 2) = pack<kElement>(low, high);
      }
    }
  }

  TW_DEVICE void store_lse(int row, float lse) {
    if constexpr (kSpec.lse) {
      if (lane_id() % 4 != 0 || row < 0 || row >= unit.q_len) return;
      float* out = args.lse + unit.head * args.lse_head +
                   (kSpec.varlen ? unit.q_start : unit.batch * args.lse_batch);
      out[row] = lse;
    }
  }
};

template <KernelSpec kSpec>
TW_DEVICE void publish_unit(const ForwardArgs& args, SharedMma<kSpec>& shared, const Unit& unit) {
  const int first = AttendMma<kSpec>::first_row_of(unit);
  const int last = min_of(first + AttendMma<kSpec>::kRows, unit.q_len) - 1;
  const int head = unit.head / args.heads_per_kv;
  shared.unit = unit;
  shared.item = item_of_rows<kSpec>(args, unit.q_len, unit.kv_len, max_of(first, 0), last);
  shared.k_rows = rows_of<kSpec>(args.k_rows, unit.batch, unit.kv_start, head);
  shared.v_rows = rows_of<kSpec>(args.v_rows, unit.batch, unit.kv_start, head);
}

template <KernelSpec kSpec>
TW_DEVICE void forward_mma(const ForwardArgs& args) {
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  SharedMma<kSpec>& shared = *reinterpret_cast<SharedMma<kSpec>*>(dynamic_shared);
  UnitDecoder<kSpec> decoder;
  for (int index = blockIdx.x;; index += gridDim.x) {
    const Unit unit = decoder.decode(args, index);
    if (unit.batch < 0) return;
    if (threadIdx.x == 0) publish_unit(args, shared, unit);
    __syncthreads();
    AttendMma<kSpec> attend(args, shared);
    attend.run();
    __syncthreads();  // the next unit overwrites what other warps may still read
  }
}

}  // namespace tilewise::gpu
