// Backward of one query tile against a range of keys, scores recomputed from q, k and lse:
//
//   for each block of keys of the range that the tile sees:
//     1. S^T = K Q^T, dP^T = V dO^T                                    [keys, panels * width]
//     2. P = exp2(S - lse log2e), dS = P (dP - delta)                  in place
//     3. dV += P^T dO, dK += dS^T Q (head_dim in lanes), dQ^T += K^T dS (queries in lanes)
//
// K and V are broadcast from where they lie; Q and dO are packed once a tile, as panels for 1 and
// as rows for 3. Sums over a range are float, whatever the elements. docs/cpu-kernels.md
#pragma once

#include "cpu/dropout.h"
#include "cpu/micro_kernel.h"
#include "cpu/pack.h"
#include "cpu/softmax_tile.h"

namespace tilewise::cpu {

// Step 3 over visible pairs only (visible.cc). row_strides: floats of a row of d_k and of d_v.
void add_visible_gradients(const Settings& settings, const BackwardTile& tile,
                           const BackwardScratch& scratch, const Block& block, int width,
                           const int64_t (&row_strides)[2]);

// Panels [begin, end) that see a block.
struct PanelRange {
  int begin;
  int end;
};

template <class S>
TW_INLINE int panels_of(const Tile& tile) {
  return (tile.rows + kWidth<S> - 1) / kWidth<S>;
}

template <class S>
TW_INLINE PanelRange panels_that_see(const BackwardTile& tile, int64_t begin, int64_t end) {
  const int panels = panels_of<S>(tile);
  PanelRange range = {panels, 0};
  for (int p = 0; p < panels; ++p) {
    const PanelKeys keys = keys_of_panel<S>(tile, p, begin, end);
    if (keys.end <= keys.begin) continue;
    if (p < range.begin) range.begin = p;
    range.end = p + 1;
  }
  return range;
}

template <class S>
void copy_range(const Settings& settings, const RowsToCopy& copy) {
  copy_rows<S>(settings.element, copy.from, copy.rows, copy.dim, copy.to, copy.row);
}

// Like keys_of_panel(), but idle lanes see nothing.
template <class S>
TW_INLINE PanelKeys working_keys(const BackwardTile& tile, int panel, const Block& block) {
  PanelKeys keys = keys_of_panel<S>(tile, panel, block.begin, block.end);
  for (int lane = 0; lane < kWidth<S>; ++lane) {
    if (tile.idle[panel * kWidth<S> + lane] != 0) keys.full = false;
  }
  return keys;
}

template <class S>
void zero_lanes(float* rows, int64_t count, int64_t stride) {
  for (int64_t r = 0; r < count; ++r) {
    for (int v = 0; v < S::kScoreVectors; ++v)
      S::store(rows + r * stride + v * S::kLanes, S::set1(0));
  }
}

// Step 2 of one panel where scores are products and every lane sees every key.
template <class S>
void weigh_plain_gradients(const Settings& settings, const BackwardScratch& scratch, int64_t count,
                           int panel, float* weights, float* d_scores) {
  using Vector = typename S::Vector;
  constexpr int kVectors = S::kScoreVectors;
  const int64_t stride = int64_t{settings.panels} * kWidth<S>;
  Vector lse[kVectors];
  Vector delta[kVectors];
  TW_UNROLL for (int v = 0; v < kVectors; ++v) {
    lse[v] = S::load(scratch.lse_log2 + panel * kWidth<S> + v * S::kLanes);
    delta[v] = S::load(scratch.delta + panel * kWidth<S> + v * S::kLanes);
  }
  for (int64_t j = 0; j < count; ++j) {
    Vector weight[kVectors];
    TW_UNROLL for (int v = 0; v < kVectors; ++v) {
      weight[v] = S::sub(S::load(weights + v * S::kLanes), lse[v]);
    }
    exp2_any<S, kVectors>(weight);
    TW_UNROLL for (int v = 0; v < kVectors; ++v) {
      const Vector d_weight = S::load(d_scores + v * S::kLanes);
      S::store(weights + v * S::kLanes, weight[v]);
      S::store(d_scores + v * S::kLanes, S::mul(weight[v], S::sub(d_weight, delta[v])));
    }
    weights += stride;
    d_scores += stride;
  }
}

// Step 2 of one panel, whatever makes scores of products.
template <class S>
void weigh_gradients(const Settings& settings, const BackwardTile& tile,
                     const BackwardScratch& scratch, const PanelKeys& keys, int panel,
                     float* weights, float* d_scores) {
  using Vector = typename S::Vector;
  const int64_t stride = int64_t{settings.panels} * kWidth<S>;
  const bool capped = settings.softcap > 0;
  const bool dropped = settings.dropout.threshold != 0;
  const bool masked = !keys.full;
  LaneRules<S> rules;
  fill_lane_rules<S>(tile, panel, keys, rules);
  for (int lane = 0; lane < kWidth<S>; ++lane) {
    if (tile.idle[panel * kWidth<S> + lane] != 0) rules.past[lane] = 0;
  }
  for (int64_t j = 0; j < keys.end - keys.begin; ++j) {
    const Vector key = S::set1(static_cast<float>(j));
    TW_UNROLL for (int v = 0; v < S::kScoreVectors; ++v) {
      const int lane = v * S::kLanes;
      Vector score = S::load(weights + j * stride + lane);
      Vector slope = S::set1(1.0f);
      if (capped) {
        const CappedScore<S> cap = softcap<S>(settings, score);
        score = cap.score_log2;
        slope = S::mul(S::sub(slope, cap.tanh), S::add(slope, cap.tanh));
      }
      if (settings.has_alibi) score = add_alibi<S>(rules, v, key, score);
      const int row = panel * kWidth<S> + lane;
      Vector weight = exp2_any<S>(S::sub(score, S::load(scratch.lse_log2 + row)));
      Vector d_weight = S::load(d_scores + j * stride + lane);
      Vector kept = weight;
      if (dropped) {
        const Vector keep = S::load(scratch.keep + j * kWidth<S> + lane);
        d_weight = S::mul(d_weight, keep);
        kept = S::mul(weight, keep);
      }
      Vector d_score = S::mul(weight, S::sub(d_weight, S::load(scratch.delta + row)));
      if (capped) d_score = S::mul(d_score, slope);
      if (masked) {
        kept = if_visible<S>(rules, v, key, kept, S::set1(0));
        d_score = if_visible<S>(rules, v, key, d_score, S::set1(0));
      }
      S::store(weights + j * stride + lane, kept);
      S::store(d_scores + j * stride + lane, d_score);
    }
  }
}

// Steps 1 and 2 of one panel. Returns whether some pair is invisible.
template <class S>
bool score_panel(const Settings& settings, const BackwardTile& tile, const BackwardScratch& scratch,
                 const Block& block, int panel) {
  constexpr int kW = kWidth<S>;
  const int64_t stride = int64_t{settings.panels} * kW;
  const PanelKeys keys = working_keys<S>(tile, panel, block);
  float* const weights = scratch.weights + panel * kW;
  float* const d_scores = scratch.d_scores + panel * kW;
  const int64_t before = keys.begin - block.begin;
  const int64_t past = (keys.end > keys.begin ? keys.end : keys.begin) - block.begin;
  const int64_t rest = block.end - block.begin - past;
  zero_lanes<S>(weights, before, stride);
  zero_lanes<S>(weights + past * stride, rest, stride);
  zero_lanes<S>(d_scores, before, stride);
  zero_lanes<S>(d_scores + past * stride, rest, stride);
  const int64_t count = past - before;
  if (count == 0) return true;
  float* const first_weight = weights + before * stride;
  float* const first_d_score = d_scores + before * stride;
  multiply<S, Operand::rows, Finish::store, S::kScoreRows, S::kScoreVectors>(
      {row_of(block.keys, before), block.keys.stride,
       scratch.queries + int64_t{panel} * settings.head_dim * kW, kW, settings.head_dim,
       first_weight, stride, nullptr},
      count);
  if (tile.d_k != nullptr || tile.d_q.data != nullptr) {
    multiply<S, Operand::rows, Finish::store, S::kScoreRows, S::kScoreVectors>(
        {row_of(block.values, before), block.values.stride,
         scratch.d_outs + int64_t{panel} * settings.value_dim * kW, kW, settings.value_dim,
         first_d_score, stride, nullptr},
        count);
  } else {
    zero_lanes<S>(first_d_score, count, stride);
  }
  const bool dropped = settings.dropout.threshold != 0;
  if (dropped) fill_keep<S>(settings, tile, keys, panel, scratch.keep);
  if (keys.full && settings.softcap == 0 && !settings.has_alibi && !dropped) {
    weigh_plain_gradients<S>(settings, scratch, count, panel, first_weight, first_d_score);
  } else {
    weigh_gradients<S>(settings, tile, scratch, keys, panel, first_weight, first_d_score);
  }
  return !keys.full || rest + before > 0;
}

// Step 3 of the panels that see the block.
template <class S>
void add_gradients(const Settings& settings, const BackwardTile& tile,
                   const BackwardScratch& scratch, const Block& block, const PanelRange& panels) {
  constexpr int kW = kWidth<S>;
  const int64_t stride = int64_t{settings.panels} * kW;
  const int64_t head_row = whole_vectors<S>(settings.head_dim);
  const int64_t value_row = whole_vectors<S>(settings.value_dim);
  const int64_t count = block.end - block.begin;
  const int64_t first = block.begin - tile.range_begin;
  const int64_t lane = int64_t{panels.begin} * kW;
  const int64_t last = int64_t{panels.end} * kW < tile.rows ? int64_t{panels.end} * kW : tile.rows;
  if (tile.d_v != nullptr) {
    multiply_add_wide<S>({scratch.weights + lane, stride, scratch.d_out_rows + lane * value_row,
                          value_row, last - lane, tile.d_v + first * value_row, value_row, nullptr},
                         count, value_row);
  }
  if (tile.d_k != nullptr) {
    multiply_add_wide<S>({scratch.d_scores + lane, stride, scratch.query_rows + lane * head_row,
                          head_row, last - lane, tile.d_k + first * head_row, head_row, nullptr},
                         count, head_row);
  }
  if (tile.d_q.data == nullptr) return;
  for (int p = panels.begin; p < panels.end; ++p) {
    const PanelKeys keys = keys_of_panel<S>(tile, p, block.begin, block.end);
    if (keys.end <= keys.begin) continue;
    multiply<S, Operand::columns, Finish::add, S::kScoreRows, S::kScoreVectors>(
        {row_of(block.keys, keys.begin - block.begin), block.keys.stride,
         scratch.d_scores + (keys.begin - block.begin) * stride + p * kW, stride,
         keys.end - keys.begin, scratch.d_queries + int64_t{p} * settings.head_dim * kW, kW,
         nullptr},
        settings.head_dim);
  }
}

template <class S>
void start_gradients(const Settings& settings, const BackwardTile& tile,
                     const BackwardScratch& scratch) {
  constexpr int kW = kWidth<S>;
  for (int first = 0; first < tile.rows; first += kW) {
    const int rows = tile.rows - first;
    const int64_t head_floats = int64_t{first} * settings.head_dim;
    pack_panel<S, kW>(settings.element, rows_from(settings.element, tile.q, first), rows,
                      settings.head_dim, query_factor(settings), scratch.queries + head_floats);
    pack_panel<S, kW>(settings.element, rows_from(settings.element, tile.d_out, first), rows,
                      settings.value_dim, 1.0f,
                      scratch.d_outs + int64_t{first} * settings.value_dim);
    for (int64_t i = 0; i < int64_t{settings.head_dim} * kW; i += S::kLanes) {
      S::store(scratch.d_queries + head_floats + i, S::set1(0));
    }
    for (int lane = 0; lane < kW; ++lane) {
      const bool real = lane < rows;
      scratch.lse_log2[first + lane] =
          real ? static_cast<float>(tile.lse[first + lane] * kLog2e) : 0.0f;
      scratch.delta[first + lane] = real ? tile.delta[first + lane] : 0.0f;
    }
  }
  copy_rows<S>(settings.element, tile.q, tile.rows, settings.head_dim, scratch.query_rows,
               whole_vectors<S>(settings.head_dim));
  copy_rows<S>(settings.element, tile.d_out, tile.rows, settings.value_dim, scratch.d_out_rows,
               whole_vectors<S>(settings.value_dim));
}

template <class S>
void backward_tile(const Settings& settings, const BackwardTile& tile,
                   const BackwardScratch& scratch) {
  constexpr int kW = kWidth<S>;
  start_gradients<S>(settings, tile, scratch);
  const int64_t row_strides[2] = {whole_vectors<S>(settings.head_dim),
                                  whole_vectors<S>(settings.value_dim)};
  const Rows query_rows = {scratch.query_rows, row_strides[0]};
  const Rows d_out_rows = {scratch.d_out_rows, row_strides[1]};
  const bool rows_finite = all_finite<S>(query_rows, tile.rows, settings.head_dim) &&
                           all_finite<S>(d_out_rows, tile.rows, settings.value_dim);
  const int64_t seen = tile.key_end[panels_of<S>(tile) * kW - 1];
  const int64_t begin = tile.key_begin[0] > tile.range_begin ? tile.key_begin[0] : tile.range_begin;
  const int64_t end = seen < tile.range_end ? seen : tile.range_end;
  const int64_t step = settings.block_keys;
  for (int64_t start = begin / step * step; start < end; start += step) {
    const int64_t from = start > begin ? start : begin;
    const int64_t at = from - tile.range_begin;
    const Block block = {from,
                         start + step < end ? start + step : end,
                         {tile.keys + at * settings.key_row, settings.key_row},
                         {tile.values + at * settings.value_row, settings.value_row}};
    const PanelRange panels = panels_that_see<S>(tile, block.begin, block.end);
    bool partial = false;
    for (int p = panels.begin; p < panels.end; ++p) {
      partial = score_panel<S>(settings, tile, scratch, block, p) || partial;
    }
    const int64_t count = block.end - block.begin;
    if (partial && !(rows_finite && all_finite<S>(block.keys, count, settings.head_dim) &&
                     all_finite<S>(block.values, count, settings.value_dim))) {
      // 0 * NaN: weights of 0 would not keep invisible rows and keys out.
      add_visible_gradients(settings, tile, scratch, block, kW, row_strides);
    } else {
      add_gradients<S>(settings, tile, scratch, block, panels);
    }
  }
}

template <class S>
void add_d_q(const Settings& settings, const BackwardTile& tile, const BackwardScratch& scratch) {
  constexpr int kW = kWidth<S>;
  float factors[kW];
  for (int lane = 0; lane < kW; ++lane) factors[lane] = static_cast<float>(settings.scale);
  for (int first = 0; first < tile.rows; first += kW) {
    const int rows = tile.rows - first < kW ? tile.rows - first : kW;
    const OutputRows to = {static_cast<float*>(tile.d_q.data) + first * tile.d_q.stride,
                           tile.d_q.stride};
    unpack_panel<S, kW, true>(Element::f32, scratch.d_queries + int64_t{first} * settings.head_dim,
                              factors, rows, settings.head_dim, to);
  }
}

}  // namespace tilewise::cpu
