// Forward of one query tile: online softmax with the queries in SIMD lanes.
//
//   for each block of keys, for each panel of queries that sees some of it:
//     1. scores S^T [keys, width] = K Q^T, running maximum m of each lane
//     2. P = exp2(S - m), row sums l = l * alpha + sum P, alpha = exp2(m_before - m)
//     3. O^T [value_dim, width] = alpha O^T + V^T P
//   out = O / l, lse = ln2 (m + log2 l), with the sink joined to the sum at the end
//
// K and V are only broadcast from where they lie. Full, partial and empty blocks come from the
// lanes' key intervals; only partial ones are masked. Where vectors multiply pairs of bf16, K, V, Q
// and P are in pairs (pairs.h). docs/cpu-kernels.md
#pragma once

#include "cpu/dropout.h"
#include "cpu/micro_kernel.h"
#include "cpu/pack.h"
#include "cpu/pairs.h"
#include "cpu/softmax_tile.h"

namespace tilewise::cpu {

// out [value_dim, width] += values^T weights over visible pairs only (visible.cc).
void add_visible_values(const Settings& settings, const Tile& tile, const PanelKeys& keys,
                        const PanelLanes& lanes, const float* weights, const Rows& values,
                        float* out);

// Step 1 where scores are more than products: softcap, ALiBi, mask; raises the maxima.
template <class S>
void finish_scores(const Settings& settings, const LaneRules<S>& rules, const PanelKeys& keys,
                   float* scores, float* maxima) {
  using Vector = typename S::Vector;
  const bool capped = settings.softcap > 0;
  const bool masked = !keys.full;
  for (int v = 0; v < S::kScoreVectors; ++v) {
    Vector maximum = S::load(maxima + v * S::kLanes);
    float* column = scores + v * S::kLanes;
    for (int64_t j = 0; j < keys.end - keys.begin; ++j) {
      const Vector key = S::set1(static_cast<float>(j));
      Vector score = S::load(column + j * kWidth<S>);
      if (capped) score = softcap<S>(settings, score).score_log2;
      if (settings.has_alibi) score = add_alibi<S>(rules, v, key, score);
      if (masked) score = if_visible<S>(rules, v, key, score, S::set1(-kInfinity));
      S::store(column + j * kWidth<S>, score);
      maximum = S::max(score, maximum);
    }
    S::store(maxima + v * S::kLanes, maximum);
  }
}

// exp2(score - maximum) of kCount keys in place; returns their sum.
template <class S, int kCount>
TW_INLINE typename S::Vector weigh_keys(float* scores, typename S::Vector maximum) {
  typename S::Vector weight[kCount];
  TW_UNROLL for (int i = 0; i < kCount; ++i) {
    weight[i] = S::sub(S::load(scores + i * kWidth<S>), maximum);
  }
  exp2_below_128<S, kCount>(weight);
  TW_UNROLL for (int i = 0; i < kCount; ++i) S::store(scores + i * kWidth<S>, weight[i]);
  TW_UNROLL for (int i = 1; i < kCount; ++i) weight[0] = S::add(weight[0], weight[i]);
  return weight[0];
}

// Step 2. factors = alpha; `before`: the maxima before this block. One vector of lanes at a time:
// with all of them, GCC spills a sum, and its trip through memory becomes the pace of the loop.
template <class S>
void weigh(int64_t count, const float* before, const float* maxima, float* scores, float* sums,
           float* factors) {
  using Vector = typename S::Vector;
  constexpr int kStep = 4;
  for (int lane = 0; lane < kWidth<S>; lane += S::kLanes) {
    // -inf, the maximum of nothing, would make NaN of -inf - -inf.
    const Vector maximum = S::max(S::load(maxima + lane), S::set1(kLowestFloat));
    Vector sum = S::set1(0);
    float* at = scores + lane;
    int64_t left = count;
    for (; left >= kStep; left -= kStep) {
      sum = S::add(sum, weigh_keys<S, kStep>(at, maximum));
      at += kStep * kWidth<S>;
    }
    for (; left > 0; --left) {
      sum = S::add(sum, weigh_keys<S, 1>(at, maximum));
      at += kWidth<S>;
    }
    const Vector alpha = exp2_below_128<S>(S::sub(S::load(before + lane), maximum));
    S::store(factors + lane, alpha);
    S::store(sums + lane, S::fma(S::load(sums + lane), alpha, sum));
  }
}

// Strips of a block of values in a copy.
template <class S>
TW_INLINE Rows strips_at(const Settings& settings, const float* values, int64_t begin) {
  constexpr int64_t kKeys = kPairs<S> ? 2 : 1;  // of an element
  const int64_t key = begin % settings.block_keys;
  return {values + (begin - key) * settings.value_row + key / kKeys * S::kScoreRows, S::kScoreRows,
          settings.block_keys / kKeys * S::kScoreRows};
}

// Rows of K, and of a block of V, to a copy.
template <class S>
TW_INLINE void copy_key_rows(const Settings& settings, const Rows& from, int64_t rows, float* to) {
  if constexpr (kPairs<S>) {
    copy_key_pairs<S>(from, rows, settings.head_dim, to, settings.key_row);
  } else {
    copy_rows<S>(settings.element, from, rows, settings.head_dim, to, settings.key_row);
  }
}
template <class S>
TW_INLINE void copy_value_rows(const Settings& settings, const Rows& from, int64_t rows,
                               const Rows& to) {
  if constexpr (kPairs<S>) {
    copy_value_pairs<S>(from, rows, settings.value_dim, to);
  } else {
    copy_strips<S>(settings.element, from, rows, settings.value_dim, to);
  }
}

// A block from where it lies, from the call's copies, or copied now.
template <class S>
TW_INLINE Block forward_block(const Settings& settings, const ForwardTile& tile, int64_t begin,
                              int64_t end, const ForwardScratch& scratch) {
  Block block = {begin, end, rows_from(settings.element, tile.k, begin),
                 rows_from(settings.element, tile.v, begin)};
  if (tile.value_copy != nullptr) {
    block.values = strips_at<S>(settings, tile.value_copy, begin);
    if (tile.key_copy != nullptr) {
      block.keys = {tile.key_copy + begin * settings.key_row, settings.key_row};
    }
    return block;
  }
  if (settings.copy_keys) {
    copy_key_rows<S>(settings, block.keys, end - begin, scratch.keys);
    block.keys = {scratch.keys, settings.key_row};
  }
  if (settings.copy_values) {
    const Rows strips = strips_at<S>(settings, scratch.values, begin % settings.block_keys);
    copy_value_rows<S>(settings, block.values, end - begin, strips);
    block.values = strips;
  }
  return block;
}

// The same for all tiles: see key_copies.h.
template <class S>
void copy_keys(const Settings& settings, const KeysToCopy& copy) {
  if (copy.keys != nullptr) {
    copy_key_rows<S>(settings, rows_from(settings.element, copy.k, copy.begin),
                     copy.end - copy.begin, copy.keys + copy.begin * settings.key_row);
  }
  for (int64_t start = copy.begin; start < copy.end; start += settings.block_keys) {
    const int64_t rest = copy.end - start;
    copy_value_rows<S>(settings, rows_from(settings.element, copy.v, start),
                       rest < settings.block_keys ? rest : settings.block_keys,
                       strips_at<S>(settings, copy.values, start));
  }
}

// Step 1 of a panel. keys: of the panel, in the block.
template <class S>
void score_keys(const Settings& settings, const Tile& tile, const ForwardScratch& scratch,
                const Block& block, const PanelKeys& keys, int panel) {
  constexpr int kW = kWidth<S>;
  const int64_t count = keys.end - keys.begin;
  float* const maxima = scratch.maxima + panel * kW;
  Product products = {row_of(block.keys, keys.begin - block.begin),
                      block.keys.stride,
                      scratch.queries + int64_t{panel} * settings.head_dim * kW,
                      kW,
                      settings.head_dim,
                      scratch.scores,
                      kW,
                      maxima};
  if constexpr (kPairs<S>) {
    products.depth = pairs_of(settings.head_dim);
    products.factor = query_factor(settings);
  }
  if (keys.full && settings.softcap == 0 && !settings.has_alibi) {
    multiply<S, Operand::rows, Finish::store_max, S::kScoreRows, S::kScoreVectors>(products, count);
  } else {
    multiply<S, Operand::rows, Finish::store, S::kScoreRows, S::kScoreVectors>(products, count);
    LaneRules<S> rules;
    fill_lane_rules<S>(tile, panel, keys, rules);
    finish_scores<S>(settings, rules, keys, scratch.scores, maxima);
  }
}

// Step 2 of a panel, and dropout.
template <class S>
void weigh_panel(const Settings& settings, const Tile& tile, const ForwardScratch& scratch,
                 const PanelKeys& keys, const float* before, int panel) {
  constexpr int kW = kWidth<S>;
  const int64_t count = keys.end - keys.begin;
  const bool drops = settings.dropout.threshold != 0;
  if (drops) fill_keep<S>(settings, tile, keys, panel, scratch.keep);
  if constexpr (kPairs<S>) {
    weigh_pairs<S>(count, before, scratch, panel, drops ? scratch.keep : nullptr);
  } else {
    weigh<S>(count, before, scratch.maxima + panel * kW, scratch.scores, scratch.sums + panel * kW,
             scratch.factors);
    if (!drops) return;
    for (int64_t i = 0; i < count * kW; i += S::kLanes) {
      S::store(scratch.scores + i, S::mul(S::load(scratch.scores + i), S::load(scratch.keep + i)));
    }
  }
}

// Step 3 of a panel.
template <class S>
void add_values(const Settings& settings, const Tile& tile, const ForwardScratch& scratch,
                const Block& block, const PanelKeys& keys, int panel) {
  constexpr int kW = kWidth<S>;
  const int64_t count = keys.end - keys.begin;
  constexpr int64_t kKeys = kPairs<S> ? 2 : 1;  // of an element
  const int64_t steps = (count + kKeys - 1) / kKeys;
  float* const out = scratch.outs + int64_t{panel} * settings.value_dim * kW;
  const Rows values = {row_of(block.values, (keys.begin - block.begin) / kKeys),
                       block.values.stride, block.values.strip};
  Product sums = {static_cast<const float*>(values.data),
                  values.stride,
                  scratch.scores,
                  kW,
                  steps,
                  out,
                  kW,
                  scratch.factors,
                  values.strip};
  // The last pair may hold a key that no lane sees.
  const bool all_seen = keys.full && count % kKeys == 0;
  const bool apart = !all_seen && !all_finite<S>(values, steps, settings.value_dim);
  if (apart) sums.depth = 0;  // 0 * NaN: a weight of 0 would not keep an invisible value out
  multiply<S, Operand::columns, Finish::rescale, S::kScoreRows, S::kScoreVectors>(
      sums, settings.value_dim);
  if (!apart) return;
  const PanelLanes lanes = {panel * kW, kW, kW};
  if constexpr (kPairs<S>) {
    add_visible_pairs(settings, tile, keys, lanes, scratch.scores, values, out);
  } else {
    add_visible_values(settings, tile, keys, lanes, scratch.scores, values, out);
  }
}

template <class S>
void attend_panel(const Settings& settings, const Tile& tile, const ForwardScratch& scratch,
                  const Block& block, int panel) {
  constexpr int kW = kWidth<S>;
  const PanelKeys keys = keys_of_panel<S>(tile, panel, block.begin, block.end);
  if (keys.end <= keys.begin) return;
  float before[kW];
  for (int i = 0; i < kW; ++i) before[i] = scratch.maxima[panel * kW + i];
  score_keys<S>(settings, tile, scratch, block, keys, panel);
  weigh_panel<S>(settings, tile, scratch, keys, before, panel);
  add_values<S>(settings, tile, scratch, block, keys, panel);
}

// The factor that makes outs of O, and the row's lse.
TW_INLINE float finish_row(const Settings& settings, float sink, float maximum, float sum,
                           float* lse) {
  const double infinity = __builtin_huge_val();
  const double top = maximum * kLn2;  // natural
  if (settings.has_sink && sink != -kInfinity) {
    if (sum == 0) {
      *lse = sink;
      return 0;
    }
    const double shift = sink > top ? static_cast<double>(sink) : top;
    const double weight = __builtin_exp(top - shift);
    const double total = sum * weight + __builtin_exp(sink - shift);
    *lse = static_cast<float>(shift + __builtin_log(total));
    return static_cast<float>(weight / total);
  }
  if (sum == 0) {
    *lse = static_cast<float>(-infinity);
    return 0;
  }
  *lse = static_cast<float>(top + __builtin_log(static_cast<double>(sum)));
  return static_cast<float>(1 / static_cast<double>(sum));
}

template <class S>
void finish_tile(const Settings& settings, const ForwardTile& tile, const ForwardScratch& scratch) {
  constexpr int kW = kWidth<S>;
  const int64_t element_bytes = settings.element == Element::f32 ? 4 : 2;
  for (int first = 0; first < tile.rows; first += kW) {
    const int rows = tile.rows - first < kW ? tile.rows - first : kW;
    for (int lane = 0; lane < kW; ++lane) {
      float lse = 0;
      scratch.factors[lane] =
          finish_row(settings, lane_of(tile, first + lane).sink, scratch.maxima[first + lane],
                     scratch.sums[first + lane], &lse);
      if (tile.lse != nullptr && lane < rows) tile.lse[first + lane] = lse;
    }
    const OutputRows to = {
        static_cast<char*>(tile.out.data) + first * tile.out.stride * element_bytes,
        tile.out.stride};
    unpack_panel<S, kW>(settings.element, scratch.outs + int64_t{first} * settings.value_dim,
                        scratch.factors, rows, settings.value_dim, to);
  }
}

template <class S>
void start_tile(const Settings& settings, const ForwardTile& tile, const ForwardScratch& scratch) {
  constexpr int kW = kWidth<S>;
  const auto zero = S::set1(0);
  for (int first = 0; first < tile.rows; first += kW) {
    const Rows from = rows_from(settings.element, tile.q, first);
    float* const queries = scratch.queries + int64_t{first} * settings.head_dim;
    if constexpr (kPairs<S>) {
      pack_query_pairs<S>(from, tile.rows - first, settings.head_dim, queries);
    } else {
      pack_panel<S, kW>(settings.element, from, tile.rows - first, settings.head_dim,
                        query_factor(settings), queries);
    }
    float* const out = scratch.outs + int64_t{first} * settings.value_dim;
    for (int64_t i = 0; i < int64_t{settings.value_dim} * kW; i += S::kLanes) {
      S::store(out + i, zero);
    }
    for (int lane = 0; lane < kW; lane += S::kLanes) {
      S::store(scratch.maxima + first + lane, S::set1(-kInfinity));
      S::store(scratch.sums + first + lane, zero);
    }
  }
}

// All of a tile but its end; `part`: of the keys, or all of them.
template <class S>
void attend_part(const Settings& settings, const ForwardTile& tile, const ForwardScratch& scratch) {
  constexpr int kW = kWidth<S>;
  start_tile<S>(settings, tile, scratch);
  const int panels = (tile.rows + kW - 1) / kW;
  const int64_t begin = first_of_pair<S>(tile.key_begin[0]);
  const int64_t end = tile.key_end[panels * kW - 1];
  const int64_t step = settings.block_keys;
  // Blocks start at multiples of their length, so a row's result does not depend on its tile.
  for (int64_t start = begin / step * step; start < end; start += step) {
    const Block block = forward_block<S>(settings, tile, start > begin ? start : begin,
                                         start + step < end ? start + step : end, scratch);
    for (int panel = 0; panel < panels; ++panel) {
      attend_panel<S>(settings, tile, scratch, block, panel);
    }
  }
}

template <class S>
void forward_tile(const Settings& settings, const ForwardTile& tile,
                  const ForwardScratch& scratch) {
  attend_part<S>(settings, tile, scratch);
  finish_tile<S>(settings, tile, scratch);
}

// Joins the parts of a tile of one panel in the first, in order, and finishes the tile.
template <class S>
void merge_parts(const Settings& settings, const ForwardTile& tile, const ForwardScratch& scratch,
                 const KeyParts& parts) {
  constexpr int kW = kWidth<S>;
  using Vector = typename S::Vector;
  float tops[kW];
  for (int lane = 0; lane < kW; lane += S::kLanes) {
    Vector top = S::set1(-kInfinity);
    for (int64_t part = 0; part < parts.count; ++part) {
      top = S::max(S::load(scratch.maxima + part * parts.floats + lane), top);
    }
    S::store(tops + lane, top);
  }
  for (int64_t part = 0; part < parts.count; ++part) {
    const int64_t from = part * parts.floats;
    for (int lane = 0; lane < kW; lane += S::kLanes) {
      const Vector top = S::max(S::load(tops + lane), S::set1(kLowestFloat));
      const Vector factor = exp2_below_128<S>(S::sub(S::load(scratch.maxima + from + lane), top));
      const Vector before = part == 0 ? S::set1(0) : S::load(scratch.sums + lane);
      S::store(scratch.sums + lane, S::fma(S::load(scratch.sums + from + lane), factor, before));
      for (int d = 0; d < settings.value_dim; ++d) {
        float* const out = scratch.outs + d * kW + lane;
        const Vector sum = part == 0 ? S::set1(0) : S::load(out);
        S::store(out, S::fma(S::load(out + from), factor, sum));
      }
    }
  }
  for (int lane = 0; lane < kW; lane += S::kLanes) {
    S::store(scratch.maxima + lane, S::load(tops + lane));
  }
  finish_tile<S>(settings, tile, scratch);
}

}  // namespace tilewise::cpu
