// Sums over the intervals that semantics/mask.h gives; see pairs.h.
#include "cost/pairs.h"

#include <algorithm>

namespace tilewise::cost_model {

namespace {

// The interval grown to whole tiles, then cut to the sequence.
semantics::KeyRange whole_tiles(const semantics::KeyRange& range, int64_t tile, int64_t length) {
  return {range.begin / tile * tile,
          std::min((range.end + tile - 1) / tile * tile, static_cast<semantics::i64>(length))};
}

}  // namespace

double visible_pairs(const semantics::Band& band) {
  if (band.left == semantics::kUnbounded && band.right == semantics::kUnbounded) {
    return static_cast<double>(band.q_len) * static_cast<double>(band.kv_len);
  }
  double pairs = 0;
  for (int64_t i = 0; i < band.q_len; ++i) {
    pairs += static_cast<double>(band.keys_of_row(i).count());
  }
  return pairs;
}

TileWalk walk_query_tiles(const semantics::Band& band, int64_t tile_rows, int64_t tile_keys) {
  TileWalk walk;
  for (int64_t first = 0; first < band.q_len; first += tile_rows) {
    const int64_t last = std::min<int64_t>(first + tile_rows, band.q_len);
    const semantics::KeyRange seen = band.keys_of_rows(first, last);
    if (seen.empty()) continue;
    const auto keys = static_cast<double>(whole_tiles(seen, tile_keys, band.kv_len).count());
    walk.pairs += keys * static_cast<double>(last - first);
    walk.rows += static_cast<double>(last - first);
    walk.keys += keys;
    ++walk.tiles;
  }
  return walk;
}

TileWalk walk_key_tiles(const semantics::Band& band, int64_t tile_rows, int64_t tile_keys) {
  TileWalk walk;
  for (int64_t first = 0; first < band.kv_len; first += tile_keys) {
    const int64_t last = std::min<int64_t>(first + tile_keys, band.kv_len);
    const semantics::KeyRange seeing = band.rows_of_keys(first, last);
    if (seeing.empty()) continue;
    const auto rows = static_cast<double>(whole_tiles(seeing, tile_rows, band.q_len).count());
    walk.pairs += rows * static_cast<double>(last - first);
    walk.rows += rows;
    walk.keys += static_cast<double>(last - first);
    ++walk.tiles;
  }
  return walk;
}

}  // namespace tilewise::cost_model
