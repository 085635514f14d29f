// Standard attention as textbooks have it, for comparison: the matrices S, P (and dP, dS) lie in
// memory, whole, and every pass reads and writes them. The products are those of the tiled kernels,
// blocked alike, so a comparison shows what tiling changes and nothing else.
//
//   forward   1. S = K Q^T   2. P = softmax(mask(S))            3. O = V^T P
//   backward  1. S, dP       2. P = exp(S - lse), dS = P (dP - rowsum(P dP) + dLSE)
//             3. dQ = K^T dS           4. dV = P^T dO, dK = dS^T Q
#pragma once

#include "cpu/backward.h"
#include "cpu/forward.h"

namespace tilewise::cpu {

// Keys summed together before they join a row's sum: two levels keep long sums accurate.
constexpr int64_t kSumKeys = 128;

// How one panel's columns of a matrix lie: element (key, lane) at data[key * stride + lane].
struct PanelMatrix {
  float* data;
  int64_t stride;
  float* at(int64_t key, int lane) const { return data + key * stride + lane; }
};

// Forward reads one panel at a time, so its panels lie apart, as the weights of the tiled kernel do
// (48 rows side by side leave no room in L1 for V). Backward sums over
// all rows of a tile, which therefore lie side by side.
template <class S>
TW_INLINE PanelMatrix panel_matrix(const Settings& settings, const StandardTile& tile,
                                   float* matrix, int panel) {
  if (tile.d_scores == nullptr) return {matrix + panel * tile.kv_len * kWidth<S>, kWidth<S>};
  return {matrix + panel * kWidth<S>, int64_t{settings.panels} * kWidth<S>};
}

// The whole sequence as one panel's keys.
template <class S>
TW_INLINE PanelKeys all_keys(const StandardTile& tile, int panel) {
  PanelKeys keys = {0, tile.kv_len, true};
  for (int lane = panel * kWidth<S>; lane < (panel + 1) * kWidth<S>; ++lane) {
    if (tile.idle[lane] != 0 || tile.key_begin[lane] > 0 || tile.key_end[lane] < tile.kv_len) {
      keys.full = false;
    }
  }
  return keys;
}

template <class S>
void fill_standard_rules(const StandardTile& tile, int panel, const PanelKeys& keys,
                         LaneRules<S>& rules) {
  fill_lane_rules<S>(tile, panel, keys, rules);
  for (int lane = 0; lane < kWidth<S>; ++lane) {
    if (tile.idle[panel * kWidth<S> + lane] != 0) rules.past[lane] = 0;
  }
}

TW_INLINE int64_t block_end(const Settings& settings, int64_t begin, int64_t end) {
  return begin + settings.block_keys < end ? begin + settings.block_keys : end;
}

// Rows of a block as the strips that products walk down.
template <class S>
TW_INLINE Rows copied_strips(const Settings& settings, const Rows& from, int64_t count, int dim,
                             float* scratch) {
  const Rows strips = {scratch, S::kScoreRows, settings.block_keys * S::kScoreRows};
  copy_strips<S>(settings.element, from, count, dim, strips);
  return strips;
}

// The part of a matrix that the next product reads, brought into the second cache between the tiles
// of this product: memory and arithmetic then work side by side, as they do in the tiled kernels,
// whose weights never leave the first cache.
struct Ahead {
  const char* next = nullptr;
  const char* end = nullptr;
  int64_t step = 0;  // bytes between two tiles of the product

  Ahead(const float* data, int64_t floats, int64_t steps)
      : next(reinterpret_cast<const char*>(data)),
        end(reinterpret_cast<const char*>(data + floats)),
        step((floats * 4 / 64 / steps + 1) * 64) {}
  TW_INLINE void fetch() {
    for (const char* const stop = next + step; next < stop && next < end; next += 64) {
      __builtin_prefetch(next, 0, 2);
    }
  }
};

// multiply() with something ahead.
template <class S, Operand kA, int kRows, int kVectors>
void multiply_add_ahead(Product product, int64_t rows, Ahead& ahead) {
  const int64_t a_step = kA == Operand::rows ? kRows * product.a_stride : product.strip;
  for (; rows > 0; rows -= kRows) {
    ahead.fetch();
    multiply<S, kA, Finish::add, kRows, kVectors>(product, rows < kRows ? rows : kRows);
    product.a += a_step;
    product.c += kRows * product.c_stride;
  }
}

// multiply_add_wide() with something ahead.
template <class S>
void multiply_wide_ahead(Product product, int64_t rows, int64_t columns, Ahead& ahead) {
  constexpr int kStep = S::kGradientVectors * S::kLanes;
  for (; columns >= kStep; columns -= kStep) {
    multiply_add_ahead<S, Operand::rows, S::kGradientRows, S::kGradientVectors>(product, rows,
                                                                                ahead);
    product.b += kStep;
    product.c += kStep;
  }
  for (; columns > 0; columns -= S::kLanes) {
    multiply_add_ahead<S, Operand::rows, S::kGradientRows, 1>(product, rows, ahead);
    product.b += S::kLanes;
    product.c += S::kLanes;
  }
}

template <class S>
void multiply_block(const Rows& keys, int64_t count, const float* panel, int depth,
                    const PanelMatrix& matrix) {
  multiply<S, Operand::rows, Finish::store, S::kScoreRows, S::kScoreVectors>(
      {row_of(keys, 0), keys.stride, panel, kWidth<S>, depth, matrix.data, matrix.stride, nullptr},
      count);
}

template <class S>
void standard_products(const Settings& settings, const StandardTile& tile,
                       const BackwardScratch& scratch) {
  constexpr int kW = kWidth<S>;
  for (int first = 0; first < tile.rows; first += kW) {
    pack_panel<S, kW>(settings.element, rows_from(settings.element, tile.q, first),
                      tile.rows - first, settings.head_dim, query_factor(settings),
                      scratch.queries + int64_t{first} * settings.head_dim);
    if (tile.d_scores == nullptr) continue;
    pack_panel<S, kW>(settings.element, rows_from(settings.element, tile.d_out, first),
                      tile.rows - first, settings.value_dim, 1.0f,
                      scratch.d_outs + int64_t{first} * settings.value_dim);
  }
  Settings copied = settings;
  if (tile.d_scores == nullptr) copied.copy_values = false;  // nothing here reads V
  for (int64_t begin = 0; begin < tile.kv_len; begin += settings.block_keys) {
    const int64_t end = block_end(settings, begin, tile.kv_len);
    const Block block = load_block<S>(copied, tile, begin, end, scratch);
    const int64_t count = end - begin;
    for (int panel = 0; panel < panels_of<S>(tile); ++panel) {
      const int64_t first = int64_t{panel} * kW;
      PanelMatrix scores = panel_matrix<S>(settings, tile, tile.scores, panel);
      scores.data = scores.at(block.begin, 0);
      multiply_block<S>(block.keys, count, scratch.queries + first * settings.head_dim,
                        settings.head_dim, scores);
      if (tile.d_scores == nullptr) continue;
      PanelMatrix d_scores = panel_matrix<S>(settings, tile, tile.d_scores, panel);
      d_scores.data = d_scores.at(block.begin, 0);
      multiply_block<S>(block.values, count, scratch.d_outs + first * settings.value_dim,
                        settings.value_dim, d_scores);
    }
  }
}

// Masks one vector of lanes and returns its maximum.
template <class S>
typename S::Vector mask_lanes(const LaneRules<S>& rules, const PanelKeys& keys, int vector,
                              float* column, int64_t stride) {
  auto maximum = S::set1(-kInfinity);
  for (int64_t j = 0; j < keys.end; ++j) {
    auto score = S::load(column + j * stride);
    if (!keys.full) {
      const auto key = S::set1(static_cast<float>(j));
      score = if_visible<S>(rules, vector, key, score, S::set1(-kInfinity));
      S::store(column + j * stride, score);
    }
    maximum = S::max(score, maximum);
  }
  return maximum;
}

// exp2(score - maximum) in place; returns the sum.
template <class S>
typename S::Vector weigh_lanes(int64_t count, typename S::Vector maximum, float* column,
                               int64_t stride) {
  auto sum = S::set1(0);
  for (int64_t start = 0; start < count; start += kSumKeys) {
    auto part = S::set1(0);
    const int64_t end = start + kSumKeys < count ? start + kSumKeys : count;
    for (int64_t j = start; j < end; ++j) {
      const auto weight = exp2_any<S>(S::sub(S::load(column + j * stride), maximum));
      S::store(column + j * stride, weight);
      part = S::add(part, weight);
    }
    sum = S::add(sum, part);
  }
  return sum;
}

template <class S>
void standard_softmax(const Settings& settings, const StandardTile& tile) {
  constexpr int kW = kWidth<S>;
  for (int first = 0; first < tile.rows; first += kW) {
    const int panel = first / kW;
    const PanelMatrix matrix = panel_matrix<S>(settings, tile, tile.scores, panel);
    const int64_t stride = matrix.stride;
    const PanelKeys keys = all_keys<S>(tile, panel);
    LaneRules<S> rules;
    fill_standard_rules<S>(tile, panel, keys, rules);
    for (int v = 0; v < S::kScoreVectors; ++v) {
      const int lane = first + v * S::kLanes;
      float* const column = matrix.at(0, v * S::kLanes);
      const auto top = mask_lanes<S>(rules, keys, v, column, stride);
      const auto maximum = S::max(top, S::set1(kLowestFloat));
      float maxima[S::kLanes];
      float factors[S::kLanes];
      S::store(maxima, top);
      S::store(factors, weigh_lanes<S>(tile.kv_len, maximum, column, stride));
      for (int i = 0; i < S::kLanes; ++i) {
        float lse = 0;
        factors[i] = finish_row(settings, 0, maxima[i], factors[i], &lse);
        if (tile.lse_out != nullptr && lane + i < tile.rows) tile.lse_out[lane + i] = lse;
      }
      const auto factor = S::load(factors);
      for (int64_t j = 0; j < tile.kv_len; ++j) {
        S::store(column + j * stride, S::mul(S::load(column + j * stride), factor));
      }
    }
  }
}

// Whether some pair of the tile is invisible: its weight is 0, and 0 times NaN is not.
template <class S>
bool some_invisible(const StandardTile& tile) {
  for (int p = 0; p < panels_of<S>(tile); ++p) {
    if (!all_keys<S>(tile, p).full) return true;
  }
  return false;
}

// O += P V of a block of keys.
template <class S>
void add_out_block(const Settings& settings, const StandardTile& tile,
                   const BackwardScratch& scratch, int64_t begin, int64_t end, bool some_hidden) {
  constexpr int kW = kWidth<S>;
  const int64_t count = end - begin;
  const Rows values = copied_strips<S>(settings, rows_from(settings.element, tile.v, begin), count,
                                       settings.value_dim, scratch.values);
  const bool by_pairs = some_hidden && !all_finite<S>(values, count, settings.value_dim);
  const int panels = panels_of<S>(tile);
  for (int panel = 0; panel < panels; ++panel) {
    const float* const weights = panel_matrix<S>(settings, tile, tile.scores, panel).at(begin, 0);
    float* const out = scratch.d_outs + int64_t{panel} * settings.value_dim * kW;
    if (by_pairs) {
      add_visible_values(settings, tile, {begin, end, false}, {panel * kW, kW, kW}, weights, values,
                         out);
      continue;
    }
    const bool last = panel + 1 == panels;
    const int64_t next = last ? end : begin;
    const int64_t ahead_keys = (last ? block_end(settings, end, tile.kv_len) : end) - next;
    Ahead ahead(panel_matrix<S>(settings, tile, tile.scores, last ? 0 : panel + 1).at(next, 0),
                ahead_keys * kW, (settings.value_dim + S::kScoreRows - 1) / S::kScoreRows);
    multiply_add_ahead<S, Operand::columns, S::kScoreRows, S::kScoreVectors>(
        {static_cast<const float*>(values.data), values.stride, weights, kW, count, out, kW,
         nullptr, values.strip},
        settings.value_dim, ahead);
  }
}

template <class S>
void standard_out(const Settings& settings, const StandardTile& tile,
                  const BackwardScratch& scratch) {
  constexpr int kW = kWidth<S>;
  float ones[kW];
  for (int lane = 0; lane < kW; ++lane) ones[lane] = 1;
  const int64_t floats = int64_t{settings.value_dim} * kW;
  for (int64_t i = 0; i < panels_of<S>(tile) * floats; i += S::kLanes) {
    S::store(scratch.d_outs + i, S::set1(0));
  }
  const bool some_hidden = some_invisible<S>(tile);
  for (int64_t begin = 0; begin < tile.kv_len; begin += settings.block_keys) {
    const int64_t end = block_end(settings, begin, tile.kv_len);
    add_out_block<S>(settings, tile, scratch, begin, end, some_hidden);
  }
  for (int first = 0; first < tile.rows; first += kW) {
    const int rows = tile.rows - first < kW ? tile.rows - first : kW;
    const Rows to = rows_from(settings.element, {tile.out.data, tile.out.stride}, first);
    unpack_panel<S, kW>(settings.element, scratch.d_outs + first / kW * floats, ones, rows,
                        settings.value_dim, {const_cast<void*>(to.data), to.stride});
  }
}

// Pass 2 of backward for one vector of lanes.
template <class S>
void standard_d_lanes(const LaneRules<S>& rules, const PanelKeys& keys, int vector,
                      typename S::Vector lse_log2, typename S::Vector d_lse, float* weights,
                      float* d_scores, int64_t stride) {
  auto delta = S::sub(S::set1(0), d_lse);
  for (int64_t start = 0; start < keys.end; start += kSumKeys) {
    auto part = S::set1(0);
    const int64_t end = start + kSumKeys < keys.end ? start + kSumKeys : keys.end;
    for (int64_t j = start; j < end; ++j) {
      auto weight = exp2_any<S>(S::sub(S::load(weights + j * stride), lse_log2));
      auto d_weight = S::load(d_scores + j * stride);
      if (!keys.full) {
        const auto key = S::set1(static_cast<float>(j));
        weight = if_visible<S>(rules, vector, key, weight, S::set1(0));
        d_weight = if_visible<S>(rules, vector, key, d_weight, S::set1(0));
        S::store(d_scores + j * stride, d_weight);
      }
      S::store(weights + j * stride, weight);
      part = S::fma(weight, d_weight, part);
    }
    delta = S::add(delta, part);
  }
  for (int64_t j = 0; j < keys.end; ++j) {
    const auto weight = S::load(weights + j * stride);
    auto d_score = S::mul(weight, S::sub(S::load(d_scores + j * stride), delta));
    if (!keys.full) {
      const auto key = S::set1(static_cast<float>(j));
      d_score = if_visible<S>(rules, vector, key, d_score, S::set1(0));
    }
    S::store(d_scores + j * stride, d_score);
  }
}

template <class S>
void standard_d_scores(const Settings& settings, const StandardTile& tile) {
  constexpr int kW = kWidth<S>;
  for (int first = 0; first < tile.rows; first += kW) {
    const int panel = first / kW;
    const PanelMatrix weights = panel_matrix<S>(settings, tile, tile.scores, panel);
    const PanelMatrix d_scores = panel_matrix<S>(settings, tile, tile.d_scores, panel);
    const PanelKeys keys = all_keys<S>(tile, panel);
    LaneRules<S> rules;
    fill_standard_rules<S>(tile, panel, keys, rules);
    for (int v = 0; v < S::kScoreVectors; ++v) {
      const int lane = first + v * S::kLanes;
      float lse_log2[S::kLanes];
      float d_lse[S::kLanes];
      for (int i = 0; i < S::kLanes; ++i) {
        const bool real = lane + i < tile.rows;
        lse_log2[i] = real ? static_cast<float>(tile.lse[lane + i] * kLog2e) : 0.0f;
        d_lse[i] = real && tile.d_lse != nullptr ? tile.d_lse[lane + i] : 0.0f;
      }
      standard_d_lanes<S>(rules, keys, v, S::load(lse_log2), S::load(d_lse),
                          weights.at(0, v * S::kLanes), d_scores.at(0, v * S::kLanes),
                          weights.stride);
    }
  }
}

// The scratch of a block whose matrices are the slices of those in memory.
TW_INLINE BackwardScratch slices_at(const BackwardScratch& scratch, const StandardTile& tile,
                                    int64_t begin, int64_t stride) {
  BackwardScratch slices = scratch;
  slices.weights = tile.scores + begin * stride;
  slices.d_scores = tile.d_scores + begin * stride;
  return slices;
}

// dQ += dS^T K of a block of keys.
template <class S>
void add_d_q_block(const Settings& settings, const StandardTile& tile,
                   const BackwardScratch& scratch, int64_t begin, int64_t end, bool some_hidden) {
  constexpr int kW = kWidth<S>;
  const int64_t stride = int64_t{settings.panels} * kW;
  const int64_t count = end - begin;
  const Rows from = rows_from(settings.element, tile.k, begin);
  const Rows keys = copied_strips<S>(settings, from, count, settings.head_dim, scratch.keys);
  if (some_hidden && !all_finite<S>(keys, count, settings.head_dim)) {
    copy_rows<S>(settings.element, from, count, settings.head_dim, scratch.keys, settings.key_row);
    const Block block = {begin, end, {scratch.keys, settings.key_row}, {}};
    add_visible_gradients(settings, tile, slices_at(scratch, tile, begin, stride), block, kW,
                          {settings.key_row, settings.value_row});
    return;
  }
  const int panels = panels_of<S>(tile);
  const int64_t tiles = panels * ((settings.head_dim + S::kScoreRows - 1) / S::kScoreRows);
  Ahead ahead(tile.d_scores + end * stride, (block_end(settings, end, tile.kv_len) - end) * stride,
              tiles);
  for (int panel = 0; panel < panels; ++panel) {
    multiply_add_ahead<S, Operand::columns, S::kScoreRows, S::kScoreVectors>(
        {static_cast<const float*>(keys.data), keys.stride,
         tile.d_scores + begin * stride + panel * kW, stride, count,
         scratch.d_queries + int64_t{panel} * settings.head_dim * kW, kW, nullptr, keys.strip},
        settings.head_dim, ahead);
  }
}

template <class S>
void standard_d_q(const Settings& settings, const StandardTile& tile,
                  const BackwardScratch& scratch) {
  const int64_t floats = int64_t{panels_of<S>(tile)} * settings.head_dim * kWidth<S>;
  for (int64_t i = 0; i < floats; i += S::kLanes) S::store(scratch.d_queries + i, S::set1(0));
  const bool some_hidden = some_invisible<S>(tile);
  for (int64_t begin = 0; begin < tile.kv_len; begin += settings.block_keys) {
    add_d_q_block<S>(settings, tile, scratch, begin, block_end(settings, begin, tile.kv_len),
                     some_hidden);
  }
  add_d_q<S>(settings, tile, scratch);
}

template <class S>
TW_INLINE Ahead ahead_of_wide(const float* next, int64_t floats, int64_t rows, int64_t columns) {
  constexpr int kStep = S::kGradientVectors * S::kLanes;
  return {next, floats,
          (columns + kStep - 1) / kStep * ((rows + S::kGradientRows - 1) / S::kGradientRows)};
}

// dV += P^T dO and dK += dS^T Q of a block of keys.
template <class S>
void add_d_kv_block(const Settings& settings, const StandardTile& tile,
                    const BackwardScratch& scratch, int64_t begin, int64_t end) {
  const int64_t stride = int64_t{settings.panels} * kWidth<S>;
  const int64_t count = end - begin;
  const int64_t first = begin - tile.range_begin;
  const float* const weights = tile.scores + begin * stride;
  const float* const d_scores = tile.d_scores + begin * stride;
  const int64_t next = (block_end(settings, end, tile.range_end) - end) * stride;
  if (tile.d_v != nullptr) {
    const bool both = tile.d_k != nullptr;
    const int64_t columns = whole_vectors<S>(settings.value_dim);
    Ahead ahead = ahead_of_wide<S>(both ? d_scores : weights + count * stride,
                                   both ? count * stride : next, count, columns);
    multiply_wide_ahead<S>({weights, stride, scratch.d_out_rows, settings.value_row, tile.rows,
                            tile.d_v + first * settings.value_row, settings.value_row, nullptr},
                           count, columns, ahead);
  }
  if (tile.d_k != nullptr) {
    const int64_t columns = whole_vectors<S>(settings.head_dim);
    const float* const then = tile.d_v != nullptr ? weights : d_scores;
    Ahead ahead = ahead_of_wide<S>(then + count * stride, next, count, columns);
    multiply_wide_ahead<S>({d_scores, stride, scratch.query_rows, settings.key_row, tile.rows,
                            tile.d_k + first * settings.key_row, settings.key_row, nullptr},
                           count, columns, ahead);
  }
}

// Adds the gradients of keys [range_begin, range_end), from slices of the matrices.
template <class S>
void standard_d_kv(const Settings& settings, const StandardTile& tile,
                   const BackwardScratch& scratch) {
  const int64_t stride = int64_t{settings.panels} * kWidth<S>;
  const Rows query_rows = {scratch.query_rows, settings.key_row};
  const Rows d_out_rows = {scratch.d_out_rows, settings.value_row};
  copy_rows<S>(settings.element, tile.q, tile.rows, settings.head_dim, scratch.query_rows,
               settings.key_row);
  copy_rows<S>(settings.element, tile.d_out, tile.rows, settings.value_dim, scratch.d_out_rows,
               settings.value_row);
  const bool by_pairs =
      some_invisible<S>(tile) && !(all_finite<S>(query_rows, tile.rows, settings.head_dim) &&
                                   all_finite<S>(d_out_rows, tile.rows, settings.value_dim));
  for (int64_t begin = tile.range_begin; begin < tile.range_end; begin += settings.block_keys) {
    const int64_t end = block_end(settings, begin, tile.range_end);
    if (by_pairs) {
      add_visible_gradients(settings, tile, slices_at(scratch, tile, begin, stride),
                            {begin, end, {}, {}}, kWidth<S>,
                            {settings.key_row, settings.value_row});
    } else {
      add_d_kv_block<S>(settings, tile, scratch, begin, end);
    }
  }
}

}  // namespace tilewise::cpu
