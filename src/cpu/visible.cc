// The slow path of partly masked tiles that hold NaN or infinities: products over visible pairs
// only, one by one, so that nothing invisible is multiplied by a weight of 0.
#include "cpu/backward.h"
#include "cpu/forward.h"

namespace tilewise::cpu {

void add_visible_values(const Settings& settings, const Tile& tile, const PanelKeys& keys,
                        const PanelLanes& lanes, const float* weights, const Rows& values,
                        float* out) {
  for (int lane = 0; lane < lanes.width; ++lane) {
    const int row = lanes.first + lane;
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      if (j < tile.key_begin[row] || j >= tile.key_end[row]) continue;
      const float weight = weights[(j - keys.begin) * lanes.stride + lane];
      const float* const value = row_of(values, j - keys.begin);
      for (int64_t d = 0; d < settings.value_dim; ++d) {
        const int64_t at =
            values.strip == 0 ? d : d / values.stride * values.strip + d % values.stride;
        out[d * lanes.width + lane] += weight * value[at];
      }
    }
  }
}

void add_visible_pairs(const Settings& settings, const Tile& tile, const PanelKeys& keys,
                       const PanelLanes& lanes, const float* weights, const Rows& values,
                       float* out) {
  const auto word_of = [](const float& pair, int64_t key) {
    uint16_t words[2];
    __builtin_memcpy(words, &pair, sizeof words);
    const uint32_t bits = uint32_t{words[key % 2]} << 16;
    float value = 0;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  };
  for (int lane = 0; lane < lanes.width; ++lane) {
    const int row = lanes.first + lane;
    for (int64_t j = 0; j < keys.end - keys.begin; ++j) {
      if (keys.begin + j < tile.key_begin[row] || keys.begin + j >= tile.key_end[row]) continue;
      const float weight = word_of(weights[j / 2 * lanes.stride + lane], j);
      const float* const pairs = row_of(values, j / 2);
      for (int64_t d = 0; d < settings.value_dim; ++d) {
        const int64_t at = d / values.stride * values.strip + d % values.stride;
        out[d * lanes.width + lane] += weight * word_of(pairs[at], j);
      }
    }
  }
}

void add_visible_gradients(const Settings& settings, const BackwardTile& tile,
                           const BackwardScratch& scratch, const Block& block, int width,
                           const int64_t (&row_strides)[2]) {
  const int64_t stride = int64_t{settings.panels} * width;
  for (int lane = 0; lane < tile.rows; ++lane) {
    if (tile.idle[lane] != 0) continue;
    const float* const query = scratch.query_rows + lane * row_strides[0];
    const float* const d_out = scratch.d_out_rows + lane * row_strides[1];
    float* const d_query =
        scratch.d_queries + int64_t{lane / width} * settings.head_dim * width + lane % width;
    for (int64_t j = block.begin; j < block.end; ++j) {
      if (j < tile.key_begin[lane] || j >= tile.key_end[lane]) continue;
      const int64_t at = (j - block.begin) * stride + lane;
      const float weight = scratch.weights[at];
      const float d_score = scratch.d_scores[at];
      const int64_t row = j - tile.range_begin;
      for (int d = 0; tile.d_k != nullptr && d < settings.head_dim; ++d) {
        tile.d_k[row * row_strides[0] + d] += d_score * query[d];
      }
      for (int d = 0; tile.d_q.data != nullptr && d < settings.head_dim; ++d) {
        d_query[int64_t{d} * width] += d_score * row_of(block.keys, j - block.begin)[d];
      }
      for (int d = 0; tile.d_v != nullptr && d < settings.value_dim; ++d) {
        tile.d_v[row * row_strides[1] + d] += weight * d_out[d];
      }
    }
  }
}

}  // namespace tilewise::cpu
