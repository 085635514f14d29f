// Forward on matrix tiles for long rows: 32 rows by 32 keys a unit, outputs in memory.
//
//   unit u       P = exp2(c S - r)                        vectors, four rows at a time
//   unit u + 1   S = Q K^T                                tiles, 2 x 2, dealt out between the rows
//   block - 1    O += P V, a quarter of its columns       the same, after those
//
// Four units are a block: an output is loaded, added to and stored once a block. What is written
// must stay in the first cache (48 KB), because a store that misses it costs three loads: scores of
// two units (8 KB), weights of two blocks (16 KB), outputs of one panel (16 KB at 128 dimensions).
// So a panel of 32 rows keeps its place for many blocks, before the next panel takes the same
// blocks of K and V from the second cache; and K and V pass by the first. docs/cpu-kernels.md
#pragma once

#include "cpu/tile_weights.h"

namespace tilewise::cpu {

template <class S, class T>
class StepsOnTiles {
 public:
  static constexpr int kRows = 32;

  // queries: [panels * 32, head_tiles * 32]. In scratch: outs [panels * 32, value_pairs * 32] and
  // sums, zeros.
  StepsOnTiles(const TileCall<S>& call, int panels, const uint16_t* queries)
      : call_(call), panels_(panels), queries_(queries) {
    const int64_t block_bytes = kBlock * 64 * (call.head_tiles + call.value_pairs);
    const int64_t blocks = kChunkBytes / block_bytes;
    chunk_ = (blocks > 1 ? blocks : 1) * kBlock;
  }

  void run() {
    Block before;
    Block now = first_block();
    if (now.exists) run_all(Products(*this, before, 0, &now, 0));
    while (now.exists) {
      const Block next = block_after(now);
      for (int u = 0; u < kUnits; ++u) {
        const bool last = u + 1 == kUnits;
        Products products(*this, before, u, last ? &next : &now, last ? 0 : u + 1);
        run_unit(before, now, u, products);
      }
      if (now.by_pairs) {
        add_visible_pairs(call_, unit_of(now, 0), kRows, kBlock, outs(now.panel));
      }
      before = now;
      now = next;
    }
    const Block none;
    for (int u = 0; u < kUnits; ++u) run_all(Products(*this, before, u, &none, 0));
  }

  // After run().
  float sum(int row) const { return S::total(S::load(call_.scratch.sums + row * kSumRow)); }

 private:
  static constexpr int kKeys = 32;  // of a unit
  static constexpr int kBlock = static_cast<int>(kTileBlock);
  static constexpr int kUnits = kBlock / kKeys;
  // Two sums of each row take turns, unit by unit.
  static constexpr int kSumRow = 2 * S::kLanes;
  static_assert(kUnits % 2 == 0);
  // Of K and V that a panel visits before the next one does: half of a second cache of 2 MiB.
  static constexpr int64_t kChunkBytes = 1 << 20;

  struct Block {
    int64_t begin = 0;  // first key
    int64_t chunk = 0;  // first key of the blocks a panel keeps its place for
    int panel = 0;
    int parity = 0;  // which of the two buffers of weights
    bool exists = false;
    bool by_pairs = false;  // values must be added pair by pair: some are not finite
  };

  TileUnit unit_of(const Block& block, int u) const {
    const int lane = block.panel * kRows;
    float* const sums = call_.scratch.sums + lane * kSumRow;
    return {block.begin + u * kKeys,
            lane,
            call_.scratch.scores + u % 2 * kRows * kKeys,
            kKeys,
            call_.scratch.weights + block.parity * kRows * kBlock + u * kKeys,
            kBlock,
            sums + u % 2 * S::kLanes,
            sums + (1 - u % 2) * S::kLanes,
            kSumRow};
  }
  float* outs(int panel) const {
    return call_.scratch.outs + int64_t{panel} * kRows * call_.value_pairs * 32;
  }

  // The products beside a unit, turn by turn of four loads and four multiplications: first all of S
  // of the next unit, then a quarter of the block before.
  class Products {
   public:
    Products(const StepsOnTiles& steps, const Block& before, int quarter, const Block* next, int u)
        : steps_(steps), before_(before) {
      const int64_t slots = steps.call_.value_pairs;
      slot_ = slots * quarter / kUnits;
      if (before.exists && !before.by_pairs) {
        outputs_ = (slots * (quarter + 1) / kUnits - slot_) * kUnits;
      }
      if (next->exists) {
        scores_ = steps.call_.head_tiles;
        next_ = steps.unit_of(*next, u);
      }
    }
    int64_t total() const { return scores_ + outputs_; }
    // Until `past` of them are done.
    TW_INLINE void run(int64_t past) {
      for (; done_ < past; ++done_) {
        if (done_ < scores_) {
          steps_.score_turn(next_, done_);
          continue;
        }
        steps_.output_turn(before_, slot_, turn_);
        if (++turn_ == kUnits) {
          turn_ = 0;
          ++slot_;
        }
      }
    }

   private:
    const StepsOnTiles& steps_;
    const Block& before_;
    TileUnit next_;
    int64_t scores_ = 0;
    int64_t outputs_ = 0;
    int64_t done_ = 0;
    int64_t slot_ = 0;  // 32 columns of the outputs
    int64_t turn_ = 0;
  };
  static void run_all(Products products) { products.run(products.total()); }

  // 32 columns of Q and K.
  TW_INLINE void score_turn(const TileUnit& unit, int64_t turn) const {
    const int64_t turns = call_.head_tiles;
    const int64_t q_stride = turns * 64;
    const char* const q =
        reinterpret_cast<const char*>(queries_) + unit.lane * q_stride + turn * 64;
    const float* const k = call_.tile.key_copy + (unit.begin / 16 * turns + turn) * kTileFloats;
    if (turn == 0) {
      T::template zero<0>();
      T::template zero<1>();
      T::template zero<2>();
      T::template zero<3>();
    }
    multiply({q, q + 16 * q_stride, q_stride, k, k + turns * kTileFloats});
    if (turn + 1 < turns) return;
    T::template store<0>(unit.scores, kKeys * 4);
    T::template store<2>(unit.scores + 16 * kKeys, kKeys * 4);
    T::template store<1>(unit.scores + 16, kKeys * 4);
    T::template store<3>(unit.scores + 16 * kKeys + 16, kKeys * 4);
  }

  // 32 keys of the block, and the 32 columns of one slot.
  TW_INLINE void output_turn(const Block& block, int64_t slot, int64_t turn) const {
    const int64_t o_stride = call_.value_pairs * 128;
    float* const out = outs(block.panel) + 32 * slot;
    float* const lower = out + 4 * o_stride;  // 16 rows further
    if (turn == 0) {
      T::template load<0>(out, o_stride);
      T::template load<1>(out + 16, o_stride);
      T::template load<2>(lower, o_stride);
      T::template load<3>(lower + 16, o_stride);
    }
    const uint16_t* const p = call_.scratch.weights + block.parity * kRows * kBlock + 32 * turn;
    const float* const v = call_.tile.value_copy +
                           ((block.begin / 32 + turn) * call_.value_pairs + slot) * 2 * kTileFloats;
    multiply({p, p + 16 * kBlock, kBlock * 2, v, v + kTileFloats});
    if (turn + 1 < kUnits) return;
    T::template store<0>(out, o_stride);
    T::template store<2>(lower, o_stride);
    T::template store<1>(out + 16, o_stride);
    T::template store<3>(lower + 16, o_stride);
  }

  struct Factors {
    const void* upper;  // 16 rows of A, and the 16 below
    const void* lower;
    int64_t stride;
    const float* left;  // tiles of B
    const float* right;
  };
  static TW_INLINE void multiply(const Factors& of) {
    T::template load<4>(of.upper, of.stride);
    T::template stream<6>(of.left, 64);
    T::template dot<0, 4, 6>();
    T::template load<5>(of.lower, of.stride);
    T::template dot<2, 5, 6>();
    T::template stream<7>(of.right, 64);
    T::template dot<1, 4, 7>();
    T::template dot<3, 5, 7>();
  }

  Block first_block() const {
    Block block;
    block.chunk = call_.tile.key_begin[0] / kBlock * kBlock;
    block.begin = block.chunk - kBlock;
    return block_after(block);
  }
  // The next one of the panel in its chunk, of the next panel, or of the next chunk.
  Block block_after(Block block) const {
    const int64_t end = call_.tile.key_end[panels_ * kRows - 1];
    block.parity ^= 1;
    for (;;) {
      block.begin += kBlock;
      if (block.begin >= end || block.begin >= block.chunk + chunk_) {
        if (++block.panel == panels_) {
          block.panel = 0;
          block.chunk += chunk_;
          if (block.chunk >= end) return {};
        }
        block.begin = block.chunk;
      }
      const int64_t* const begins = call_.tile.key_begin + block.panel * kRows;
      const int64_t* const ends = call_.tile.key_end + block.panel * kRows;
      if (ends[kRows - 1] <= block.begin || begins[0] >= block.begin + kBlock) continue;
      const bool full = begins[kRows - 1] <= block.begin && ends[0] >= block.begin + kBlock;
      block.exists = true;
      block.by_pairs = !full && !values_are_finite(call_, block.begin, kBlock);
      return block;
    }
  }

  void run_unit(const Block& before, const Block& now, int u, Products& products) {
    const TileUnit unit = unit_of(now, u);
    const int64_t* const begins = call_.tile.key_begin + unit.lane;
    const int64_t* const ends = call_.tile.key_end + unit.lane;
    const bool full = begins[kRows - 1] <= unit.begin && ends[0] >= unit.begin + kKeys;
    if (!full) mask_scores<S, kKeys>(call_, unit, kRows);
    if (!settled_[now.panel]) {
      products.run(products.total());
    } else if (weigh_between(unit, products)) {
      return;
    }
    const Weighed weighed = weigh_carefully<S, kKeys>(call_, unit, kRows);
    settled_[now.panel] = weighed.settled;
    if (!weighed.raised) return;
    scale_outs(call_, kRows, call_.value_pairs * 32, outs(now.panel));
    scale_weights(now, u * kKeys);
    if (before.exists && before.panel == now.panel) scale_weights(before, kBlock);
  }

  // Weights of a unit between the products beside it; false: to be weighed carefully.
  bool weigh_between(const TileUnit& unit, Products& products) const {
    constexpr int kStep = 4;
    const auto scale = S::set1(call_.scale);
    auto highest = S::none_packed();
    RowToWeigh row = {unit.scores, unit.weights, unit.sums_before, unit.sums_after};
    const float* reference = call_.scratch.maxima + unit.lane;
    for (int first = 0; first < kRows; first += kStep) {
      products.run(products.total() * (first + kStep) / kRows);
      TW_UNROLL for (int r = 0; r < kStep; ++r) {
        weigh_row<S, kKeys>({row.scores + r * kKeys, row.weights + r * kBlock,
                             row.sum_before + r * kSumRow, row.sum_after + r * kSumRow},
                            reference[r], scale, highest);
      }
      row.scores += kStep * kKeys;
      row.weights += kStep * kBlock;
      row.sum_before += kStep * kSumRow;
      row.sum_after += kStep * kSumRow;
      reference += kStep;
    }
    return !S::any_large(highest);
  }

  // Weights of a block that are still to be multiplied, of rows whose reference was raised.
  void scale_weights(const Block& block, int64_t keys) const {
    uint16_t* const weights = call_.scratch.weights + block.parity * kRows * kBlock;
    for (int row = 0; row < kRows; ++row) {
      const auto factor = S::set1(call_.scratch.factors[row]);
      if (call_.scratch.factors[row] == 1) continue;
      for (int64_t i = 0; i < keys; i += S::kLanes) {
        uint16_t* const at = weights + row * kBlock + i;
        S::store_bf16(at, S::mul(S::load_bf16(at), factor));
      }
    }
  }

  const TileCall<S>& call_;
  int panels_;
  const uint16_t* queries_;
  int64_t chunk_ = 0;                   // keys
  bool settled_[kMostTilePanels] = {};  // references are good for the main road
};

}  // namespace tilewise::cpu
