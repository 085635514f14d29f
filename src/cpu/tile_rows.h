// Forward on matrix tiles for short rows (up to 64 dimensions): 16 rows by 32 keys a unit, and the
// output of the 16 rows stays in tile registers over all of their keys.
//
//   registers 0 .. 3   O [16, 64]
//             4, 5     S [16, 32] of the next unit
//             6, 7     A and B of whatever is multiplied
//
// While unit u is weighed in vectors, the products of its neighbours run: O += P V of unit u - 1,
// then S = Q K^T of unit u + 1. Their tile instructions are dealt out between the 16 rows of
// weights, all in one body of straight code. docs/cpu-kernels.md
#pragma once

#include "cpu/tile_weights.h"

namespace tilewise::cpu {

// kHeadTiles: of 32 columns of Q and K; kValueTiles: of 16 columns of V.
template <class S, class T, int kHeadTiles, int kValueTiles>
class RowsOnTiles {
 public:
  static constexpr int kRows = 16;

  RowsOnTiles(const TileCall<S>& call, int lane, const uint16_t* queries)
      : call_(call), lane_(lane), queries_(queries) {}

  // All keys of the rows; leaves their outputs in scratch.outs [16, kValueTiles * 16].
  void run() {
    zero_outs();
    for (int i = 0; i < 2 * kRows; ++i) {
      for (int lane = 0; lane < kSumFloats; lane += S::kLanes) {
        S::store(records(0) + i * kRecord + kSumAt + lane, S::set1(0));
      }
    }
    const int64_t first = call_.tile.key_begin[lane_] / kKeys;
    const int64_t past = (call_.tile.key_end[lane_ + kRows - 1] + kKeys - 1) / kKeys;
    if (first < past) products<kOutputs, kAll>(around(first - 1));
    for (int64_t u = first; u < past; ++u) visit(u, u + 1 < past);
    if (weighed_) products<0, kOutputs>(around(past));
    store_outs();
    sums_ = records(past - 1) + kSumAt;
  }
  // After run().
  float sum(int row) const { return S::total(S::load(sums_ + row * kRecord)); }

 private:
  static constexpr int kKeys = 32;
  static constexpr int kColumns = kValueTiles * 16;
  static constexpr int kOutputs = 1 + 2 * kValueTiles;  // instructions of O += P V
  static constexpr int kKeyTile = 2 + 3 * kHeadTiles;   // of S for the first 16 keys
  static constexpr int kAll = kOutputs + 2 * kKeyTile - 1;

  // All of a row in a unit lies together, in scratch.scores: 32 scores, 32 weights, their sum. Two
  // units take turns, so that few addresses are needed and each store goes to the first cache.
  static constexpr int kWeightAt = kKeys;
  static constexpr int kSumAt = kKeys + kKeys / 2;
  static constexpr int kSumFloats = 16;
  static constexpr int kRecord = kSumAt + kSumFloats;
  static_assert(kSumFloats % S::kLanes == 0);

  float* records(int64_t u) const { return call_.scratch.scores + (u & 1) * kRows * kRecord; }
  static uint16_t* weights_of(float* record) {
    return reinterpret_cast<uint16_t*>(record + kWeightAt);
  }
  TileUnit unit(int64_t u) const {
    float* const now = records(u);
    return {
        u * kKeys,    lane_,  now, kRecord, weights_of(now), 2 * kRecord, records(u - 1) + kSumAt,
        now + kSumAt, kRecord};
  }

  void visit(int64_t u, bool more) {
    const TileUnit now = unit(u);
    const bool full = call_.tile.key_begin[lane_ + kRows - 1] <= now.begin &&
                      call_.tile.key_end[lane_] >= now.begin + kKeys;
    if (!full) mask_scores<S, kKeys>(call_, now, kRows);
    bool done = false;
    if (settled_ && weighed_) {
      done = more ? weigh_between<kAll>(u) : weigh_between<kOutputs>(u);
    } else {
      if (weighed_) products<0, kOutputs>(around(u));
      if (more) products<kOutputs, kAll>(around(u));
    }
    weighed_ = true;
    if (!done) weigh_again(now);
    if (!full && !values_are_finite(call_, now.begin, kKeys)) add_pairs(now);
  }

  // Addresses of the work on a unit and of the products around it. By value from function to
  // function: behind a reference GCC reads them again after each tile instruction, which may have
  // changed any memory.
  struct Around {
    float* now;    // records of the unit
    float* other;  // of the one before, and of the next
    const float* references;
    const float* values;  // of the unit before
    const uint16_t* queries;
    const float* keys;  // of the next unit
  };
  Around around(int64_t u) const {
    return {records(u),
            records(u - 1),
            call_.scratch.maxima + lane_,
            call_.tile.value_copy + (u - 1) * kValueTiles * kTileFloats,
            queries_,
            call_.tile.key_copy + (u + 1) * 2 * kHeadTiles * kTileFloats};
  }

  // Weights of unit u between the products around it; false: to be weighed carefully.
  template <int kProducts>
  __attribute__((noinline)) bool weigh_between(int64_t u) const {
    const Around local = around(u);
    auto scale = S::set1(call_.scale);
    S::pin(scale);
    auto highest = S::none_packed();
    rows_from<kProducts, 0>(local, scale, highest);
    return !S::any_large(highest);
  }
  template <int kProducts, int kRow>
  static TW_INLINE void rows_from(Around local, typename S::Vector scale,
                                  typename S::Packed& highest) {
    if constexpr (kRow < kRows) {
      float* const now = local.now + kRow * kRecord;
      weigh_row<S, kKeys>(
          {now, weights_of(now), local.other + kRow * kRecord + kSumAt, now + kSumAt},
          local.references[kRow], scale, highest);
      products<kProducts * kRow / kRows, kProducts*(kRow + 1) / kRows>(local);
      rows_from<kProducts, kRow + 1>(local, scale, highest);
    }
  }

  // Tile instructions [kFrom, kPast): O += P V of the unit before, then S of the next.
  template <int kFrom, int kPast>
  static TW_INLINE void products(Around local) {
    if constexpr (kFrom < kPast) {
      if constexpr (kFrom < kOutputs) {
        output_product<kFrom>(local);
      } else if constexpr (kFrom < kOutputs + kKeyTile) {
        score_product<0, kFrom - kOutputs>(local);
      } else {
        score_product<1, kFrom - kOutputs - kKeyTile>(local);
      }
      products<kFrom + 1, kPast>(local);
    }
  }

  template <int kStep>
  static TW_INLINE void output_product(Around local) {
    constexpr int kTile = (kStep - 1) / 2;
    if constexpr (kStep == 0) {
      T::template load<6>(weights_of(local.other), kRecord * 4);
    } else if constexpr (kStep % 2 == 1) {
      T::template stream<7>(local.values + kTile * kTileFloats, 64);
    } else {
      T::template dot<kTile, 6, 7>();
    }
  }

  // Zero, {load Q, load K, dot} of each 32 columns, store. The second 16 keys take the columns in
  // turn backwards: their first Q is still in its register.
  template <int kHalf, int kStep>
  static TW_INLINE void score_product(Around local) {
    constexpr int kLast = kKeyTile - 1 - kHalf;
    constexpr int kPart = kHalf == 0 ? (kStep - 1) % 3 : kStep % 3;
    constexpr int kTurn = kHalf == 0 ? (kStep - 1) / 3 : kStep / 3;
    constexpr int kHead = kHalf == 0 ? kTurn : kHeadTiles - 1 - kTurn;
    if constexpr (kStep == 0) {
      T::template zero<4 + kHalf>();
    } else if constexpr (kStep == kLast) {
      T::template store<4 + kHalf>(local.other + kHalf * 16, kRecord * 4);
    } else if constexpr (kPart == 0) {
      T::template load<6>(local.queries + kHead * 32, kHeadTiles * 64);
    } else if constexpr (kPart == 1) {
      T::template stream<7>(local.keys + (kHalf * kHeadTiles + kHead) * kTileFloats, 64);
    } else {
      T::template dot<4 + kHalf, 6, 7>();
    }
  }

  void weigh_again(const TileUnit& now) {
    const Weighed weighed = weigh_carefully<S, kKeys>(call_, now, kRows);
    settled_ = weighed.settled;
    if (!weighed.raised) return;
    store_outs();
    scale_outs(call_, kRows, kColumns, call_.scratch.outs);
    load_outs();
  }

  // Some invisible value is not finite.
  void add_pairs(const TileUnit& now) {
    store_outs();
    add_visible_pairs(call_, now, kRows, kKeys, call_.scratch.outs);
    load_outs();
    weighed_ = false;
  }

  template <int kTile = 0>
  TW_INLINE void zero_outs() {
    if constexpr (kTile < kValueTiles) {
      T::template zero<kTile>();
      zero_outs<kTile + 1>();
    }
  }
  template <int kTile = 0>
  TW_INLINE void store_outs() {
    if constexpr (kTile < kValueTiles) {
      T::template store<kTile>(call_.scratch.outs + kTile * 16, kColumns * 4);
      store_outs<kTile + 1>();
    }
  }
  template <int kTile = 0>
  TW_INLINE void load_outs() {
    if constexpr (kTile < kValueTiles) {
      T::template load<kTile>(call_.scratch.outs + kTile * 16, kColumns * 4);
      load_outs<kTile + 1>();
    }
  }

  const TileCall<S>& call_;
  int lane_;
  const uint16_t* queries_;
  bool settled_ = false;  // references are good for the main road
  bool weighed_ = false;  // the unit before has weights still to be multiplied
  const float* sums_ = nullptr;
};

}  // namespace tilewise::cpu
