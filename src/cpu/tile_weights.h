// Between the two products on matrix tiles: from scores [rows, keys] to weights in bf16.
//
// The main road takes no maximum. Weights are exp2(c S - r), where r is a reference of the row, an
// integer: its maximum when the row was last looked at, rounded up. Only when some weight is above
// 2^15 (or NaN) is the unit weighed again, carefully: a new maximum, a new reference, and what was
// summed before scaled by a power of two, which is exact. Sums are of weights before their rounding
// to bf16, and two sums of each row take turns, so that weighing again starts from the old one.
#pragma once

#include "cpu/forward.h"
#include "cpu/tile_copies.h"

namespace tilewise::cpu {

constexpr int kMostTilePanels = 8;
// Rows of references beyond are always weighed carefully: c S - r in one operation differs from the
// rounded c S that r was taken from, there by more than a weight allows.
constexpr float kLargestReference = 1 << 20;
constexpr float kAllIntegers = 1 << 23;  // floats from here on

// Scores of consecutive rows and keys, and what becomes of them.
struct TileUnit {
  int64_t begin = 0;  // first key
  int lane = 0;       // first row, of the tile
  float* scores = nullptr;
  int64_t score_row = 0;  // floats from row to row
  uint16_t* weights = nullptr;
  int64_t weight_row = 0;  // words
  const float* sums_before = nullptr;
  float* sums_after = nullptr;
  int64_t sum_row = 0;
};

// Everything of a tile that its parts share.
template <class S>
struct TileCall {
  const Settings& settings;
  const ForwardTile& tile;
  const ForwardScratch& scratch;
  int64_t head_tiles;   // of 32 columns
  int64_t value_pairs;  // of 32 columns
  float scale;          // to log2 units
};

// exp2 within 3.5e-6 for any x: sums of weights then stay within what is allowed to the lse of 32
// dimensions. 1 at 0, 0 at -inf, +inf from 128 up, NaN of NaN.
template <class S>
TW_INLINE typename S::Vector quick_exp2(typename S::Vector x) {
  constexpr float kPolynomial[] = {0.05203237f, 0.24137977f, 0.69303215f, 1.0f};
  const auto fraction = S::above_floor(x);
  auto p = S::set1(0.013555747f);
  TW_UNROLL for (int k = 0; k < 4; ++k) p = S::fma(fraction, p, S::set1(kPolynomial[k]));
  return S::scaled_by_floor(p, x);
}

// One row of a unit on the main road.
struct RowToWeigh {
  const float* scores;
  uint16_t* weights;
  const float* sum_before;
  float* sum_after;
};

// Adds the words of its weights to the `highest`.
template <class S, int kKeys>
TW_INLINE void weigh_row(const RowToWeigh& row, float reference, typename S::Vector scale,
                         typename S::Packed& highest) {
  const auto shift = S::set1(reference);
  auto sum = S::load(row.sum_before);
  TW_UNROLL for (int i = 0; i < kKeys; i += 2 * S::kLanes) {
    const auto a = quick_exp2<S>(S::fms(S::load(row.scores + i), scale, shift));
    const auto b = quick_exp2<S>(S::fms(S::load(row.scores + i + S::kLanes), scale, shift));
    const auto packed = S::pack(a, b);
    S::store_packed(row.weights + i, packed);
    highest = S::max_packed(highest, packed);
    sum = S::add(sum, S::add(a, b));
  }
  S::store(row.sum_after, sum);
}

// Scores that their row does not see become -inf.
template <class S, int kKeys>
void mask_scores(const TileCall<S>& call, const TileUnit& unit, int rows) {
  for (int row = 0; row < rows; ++row) {
    const auto relative = [&](int64_t key) {
      const int64_t at = key - unit.begin;
      return at < 0 ? int64_t{0} : at > kKeys ? int64_t{kKeys} : at;
    };
    const int64_t first = relative(call.tile.key_begin[unit.lane + row]);
    const int64_t past = relative(call.tile.key_end[unit.lane + row]);
    if (first == 0 && past == kKeys) continue;
    auto key = S::lane_numbers();
    for (int i = 0; i < kKeys; i += S::kLanes) {
      float* const at = unit.scores + row * unit.score_row + i;
      const auto none = S::set1(-kInfinity);
      auto x = S::load(at);
      x = S::select(S::less(key, S::set1(static_cast<float>(first))), none, x);
      x = S::select(S::less(key, S::set1(static_cast<float>(past))), x, none);
      S::store(at, x);
      key = S::add(key, S::set1(S::kLanes));
    }
  }
}

// The reference of a row whose scores go up to `highest`: an integer, so that factors are powers of
// two, and no bit depends on when a product meets its factor.
TW_INLINE float reference_of(float highest) {
  if (!(highest > -kAllIntegers && highest < kAllIntegers)) return highest;
  const auto below = static_cast<float>(static_cast<int>(highest));  // towards 0
  return below < highest ? below + 1 : below;
}

// What became of the rows of a unit that was weighed carefully.
struct Weighed {
  bool raised = false;   // some row's reference: its output is to be multiplied by factors[row]
  bool settled = false;  // all references are good for the main road
};

// One row: from its maximum, exp2 within 2e-7.
template <class S, int kKeys>
TW_INLINE void weigh_row_carefully(const TileCall<S>& call, const TileUnit& unit, int row,
                                   Weighed& weighed) {
  using Vector = typename S::Vector;
  const float* const from = unit.scores + row * unit.score_row;
  const Vector scale = S::set1(call.scale);
  Vector top = S::set1(-kInfinity);
  TW_UNROLL for (int i = 0; i < kKeys; i += S::kLanes) top = S::max(S::load(from + i), top);
  float& reference = call.scratch.maxima[unit.lane + row];
  const float before = reference;
  const float highest = call.scale * S::highest(top);
  if (highest > before) reference = reference_of(highest);
  // -inf, the maximum of nothing, would make NaN of -inf - -inf.
  const float shift = reference > kLowestFloat ? reference : kLowestFloat;
  Vector sum = S::load(unit.sums_before + row * unit.sum_row);
  float factor = 1;
  if (reference != before && before > -kInfinity) {
    const Vector alpha = exp2_below_128<S>(S::set1(before - shift));
    sum = S::mul(sum, alpha);
    factor = S::first(alpha);
    weighed.raised = true;
  }
  call.scratch.factors[row] = factor;
  // Rounded as the maximum was: fused, a huge score would stand far above its own maximum.
  TW_UNROLL for (int i = 0; i < kKeys; i += 2 * S::kLanes) {
    Vector pair[2] = {S::load(from + i), S::load(from + i + S::kLanes)};
    TW_UNROLL for (int k = 0; k < 2; ++k) {
      pair[k] = S::sub(S::mul(pair[k], scale), S::set1(shift));
    }
    exp2_below_128<S, 2>(pair);
    S::store_packed(unit.weights + row * unit.weight_row + i, S::pack(pair[0], pair[1]));
    sum = S::add(sum, S::add(pair[0], pair[1]));
  }
  S::store(unit.sums_after + row * unit.sum_row, sum);
  const float size = reference < 0 ? -reference : reference;
  weighed.settled = weighed.settled && size < kLargestReference;
}

template <class S, int kKeys>
__attribute__((noinline)) Weighed weigh_carefully(const TileCall<S>& call, const TileUnit& unit,
                                                  int rows) {
  Weighed weighed = {false, true};
  for (int row = 0; row < rows; ++row) {
    weigh_row_carefully<S, kKeys>(call, unit, row, weighed);
  }
  return weighed;
}

// Outputs [rows, columns] of rows whose reference was raised.
template <class S>
void scale_outs(const TileCall<S>& call, int rows, int64_t columns, float* outs) {
  for (int row = 0; row < rows; ++row) {
    if (call.scratch.factors[row] == 1) continue;
    const auto factor = S::set1(call.scratch.factors[row]);
    for (int64_t i = 0; i < columns; i += S::kLanes) {
      float* const at = outs + row * columns + i;
      S::store(at, S::mul(S::load(at), factor));
    }
  }
}

// Outputs [rows, columns] += weights times values over visible pairs only: 0 * NaN.
template <class S>
void add_visible_pairs(const TileCall<S>& call, const TileUnit& unit, int rows, int64_t keys,
                       float* outs) {
  const auto* const v = static_cast<const uint16_t*>(call.tile.v.data);
  for (int row = 0; row < rows; ++row) {
    const int lane = unit.lane + row;
    float* const out = outs + row * call.value_pairs * 32;
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t key = unit.begin + j;
      if (key < call.tile.key_begin[lane] || key >= call.tile.key_end[lane]) continue;
      const float weight = float_of_bf16(unit.weights[row * unit.weight_row + j]);
      for (int d = 0; d < call.settings.value_dim; ++d) {
        out[d] += weight * float_of_bf16(v[key * call.tile.v.stride + d]);
      }
    }
  }
}

// Whether keys [begin, begin + keys) of the copied values are finite, those past the end included.
template <class S>
bool values_are_finite(const TileCall<S>& call, int64_t begin, int64_t keys) {
  return words_are_finite<S>(call.tile.value_copy + begin * call.value_pairs * 16,
                             keys * call.value_pairs * 16);
}

}  // namespace tilewise::cpu
