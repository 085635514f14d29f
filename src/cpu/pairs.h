// Forward of bf16 where vectors multiply pairs (VDPBF16PS, BFDOT): sum += a.low b.low + a.high
// b.high in each lane. A float of K, V, Q or P then holds two words, and products are those of
// forward.h with half the depth:
//
//   K   [keys, pairs of d]            its rows as they are, zeros up to whole vectors
//   Q^T [pairs of d, width]           unscaled, so that nothing is rounded
//   P   [pairs of keys, width]        rounded to bf16; pairs start at even keys of the sequence
//   V   [strips][pairs of keys, strip]
//
// docs/cpu-kernels.md
#pragma once

#include "cpu/exp2.h"
#include "cpu/pack.h"
#include "cpu/softmax_tile.h"

namespace tilewise::cpu {

// out [value_dim, width] += values^T weights over visible pairs only, both in pairs (visible.cc).
void add_visible_pairs(const Settings& settings, const Tile& tile, const PanelKeys& keys,
                       const PanelLanes& lanes, const float* weights, const Rows& values,
                       float* out);

TW_INLINE int64_t pairs_of(int64_t n) { return (n + 1) / 2; }

// The first `count` words in pairs, 0 < count; the other lanes are 0.
template <class S>
TW_INLINE typename S::Vector load_pairs(const uint16_t* words, int64_t count) {
  if (count >= 2 * S::kLanes) return S::load_words(words);
  uint16_t copy[2 * S::kLanes];
  for (int i = 0; i < 2 * S::kLanes; ++i) copy[i] = i < count ? words[i] : uint16_t{0};
  return S::load_words(copy);
}

// Lane i: low[i], high[i] of the first `count`; no high: 0.
template <class S>
TW_INLINE typename S::Vector load_two_rows(const uint16_t* low, const uint16_t* high,
                                           int64_t count) {
  if (count >= S::kLanes && high != nullptr) return S::join_words(low, high);
  uint16_t copy[2][S::kLanes];
  for (int i = 0; i < S::kLanes; ++i) {
    copy[0][i] = i < count ? low[i] : uint16_t{0};
    copy[1][i] = i < count && high != nullptr ? high[i] : uint16_t{0};
  }
  return S::join_words(copy[0], copy[1]);
}

// Rows of interleaved heads lie too far apart for the hardware to guess the next one.
TW_INLINE void fetch_row(const uint16_t* row, int dim) {
  for (int d = 0; d < dim; d += 32) __builtin_prefetch(row + d);
}

template <class S>
void copy_key_pairs(const Rows& from, int64_t rows, int dim, float* to, int64_t to_stride) {
  constexpr int64_t kAhead = 8;
  for (int64_t r = 0; r < rows; ++r) {
    const uint16_t* const words = static_cast<const uint16_t*>(from.data) + r * from.stride;
    float* const line = to + r * to_stride;
    if (r + kAhead < rows) fetch_row(words + kAhead * from.stride, dim);
    for (int d = 0; d < dim; d += 2 * S::kLanes) {
      S::store(line + d / 2, load_pairs<S>(words + d, dim - d));
    }
  }
}

// Rows of one block, from an even key on.
template <class S>
void copy_value_pairs(const Rows& from, int64_t rows, int dim, const Rows& to) {
  constexpr int64_t kAhead = 8;
  constexpr int kStrip = S::kScoreRows;
  float* const strips = static_cast<float*>(const_cast<void*>(to.data));
  for (int64_t r = 0; r < rows; r += 2) {
    const uint16_t* const low = static_cast<const uint16_t*>(from.data) + r * from.stride;
    const uint16_t* const high = r + 1 < rows ? low + from.stride : nullptr;
    if (r + kAhead + 1 < rows) {
      fetch_row(low + kAhead * from.stride, dim);
      fetch_row(low + (kAhead + 1) * from.stride, dim);
    }
    for (int d = 0; d < dim; d += S::kLanes) {
      const int n = dim - d < S::kLanes ? dim - d : S::kLanes;
      S::template store_strips<kStrip>(
          strips + d / kStrip * to.strip + r / 2 * kStrip, to.strip, (n + kStrip - 1) / kStrip,
          load_two_rows<S>(low + d, high == nullptr ? nullptr : high + d, n));
    }
  }
}

// panel [pairs of dim, width] = transposed rows; lanes past `rows` are 0.
template <class S>
void pack_query_pairs(const Rows& from, int rows, int dim, float* panel) {
  using Vector = typename S::Vector;
  constexpr int kW = kWidth<S>;
  const uint16_t* const words = static_cast<const uint16_t*>(from.data);
  for (int lane = 0; lane < kW; lane += S::kLanes) {
    for (int d = 0; d < dim; d += 2 * S::kLanes) {
      Vector square[S::kLanes];
      for (int i = 0; i < S::kLanes; ++i) {
        const int64_t row = lane + i;
        square[i] = row < rows ? load_pairs<S>(words + row * from.stride + d, dim - d) : S::set1(0);
      }
      S::transpose(square);
      for (int i = 0; i < S::kLanes && d + 2 * i < dim; ++i) {
        S::store(panel + (d / 2 + i) * kW + lane, square[i]);
      }
    }
  }
}

// kCount keys: exp2(score - maximum), times `keep` (null: 1), to `pairs`; one alone is paired with
// 0. Returns the sum before dropout and rounding.
template <class S, int kCount>
TW_INLINE typename S::Vector weigh_key_pairs(const float* scores, const float* keep,
                                             typename S::Vector maximum, float* pairs) {
  constexpr int kW = kWidth<S>;
  typename S::Vector weight[kCount];
  TW_UNROLL for (int i = 0; i < kCount; ++i) {
    weight[i] = S::sub(S::load(scores + i * kW), maximum);
  }
  exp2_below_128<S, kCount>(weight);
  typename S::Vector sum = weight[0];
  TW_UNROLL for (int i = 1; i < kCount; ++i) sum = S::add(sum, weight[i]);
  if (keep != nullptr) {
    TW_UNROLL for (int i = 0; i < kCount; ++i) {
      weight[i] = S::mul(weight[i], S::load(keep + i * kW));
    }
  }
  if constexpr (kCount == 1) {
    S::store(pairs, S::pack(weight[0], S::set1(0)));
  } else {
    TW_UNROLL for (int i = 0; i < kCount; i += 2) {
      S::store(pairs + i / 2 * kW, S::pack(weight[i], weight[i + 1]));
    }
  }
  return sum;
}

// Step 2 of forward.h. The pairs replace the scores: they never reach one that is still to be read.
template <class S>
void weigh_pairs(int64_t count, const float* before, const ForwardScratch& scratch, int panel,
                 const float* keep) {
  using Vector = typename S::Vector;
  constexpr int kStep = 4;
  constexpr int kW = kWidth<S>;
  const int64_t keep_row = keep == nullptr ? 0 : kW;
  for (int lane = 0; lane < kW; lane += S::kLanes) {
    const int64_t row = int64_t{panel} * kW + lane;
    // -inf, the maximum of nothing, would make NaN of -inf - -inf.
    const Vector maximum = S::max(S::load(scratch.maxima + row), S::set1(kLowestFloat));
    Vector sum = S::set1(0);
    const float* scores = scratch.scores + lane;
    const float* kept = keep_row == 0 ? nullptr : keep + lane;
    float* pairs = scratch.scores + lane;
    int64_t left = count;
    for (; left >= kStep; left -= kStep) {
      sum = S::add(sum, weigh_key_pairs<S, kStep>(scores, kept, maximum, pairs));
      scores += kStep * kW;
      kept += kStep * keep_row;
      pairs += kStep / 2 * kW;
    }
    for (; left > 0; left -= 2) {
      sum = S::add(sum, left > 1 ? weigh_key_pairs<S, 2>(scores, kept, maximum, pairs)
                                 : weigh_key_pairs<S, 1>(scores, kept, maximum, pairs));
      scores += 2 * kW;
      kept += 2 * keep_row;
      pairs += kW;
    }
    const Vector alpha = exp2_below_128<S>(S::sub(S::load(before + lane), maximum));
    S::store(scratch.factors + lane, alpha);
    S::store(scratch.sums + row, S::fma(S::load(scratch.sums + row), alpha, sum));
  }
}

}  // namespace tilewise::cpu
