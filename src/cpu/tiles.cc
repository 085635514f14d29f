// The numbering of query tiles and the key intervals of their lanes; see tiles.h.
#include "cpu/tiles.h"

#include <algorithm>

namespace tilewise::cpu {

TileTasks::TileTasks(const Problem& problem, const Addresses& addresses, const TileGrid& grid,
                     int64_t* table)
    : problem_(problem), addresses_(addresses), grid_(grid), table_(table) {
  int64_t tiles = problem.batch * grid.tiles_of(problem.q_len);
  if (problem.packed) {
    tiles = 0;
    for (int64_t s = 0; s < problem.batch; ++s) {
      table_[s] = tiles;
      tiles += grid.tiles_of(addresses.sequence(s).band.q_len);
    }
    table_[problem.batch] = tiles;
  }
  count_ = tiles * (problem.q_heads / grid.heads);
}

int64_t TileTasks::first_of(int64_t sequence) const {
  const int64_t tiles =
      problem_.packed ? table_[sequence] : sequence * grid_.tiles_of(problem_.q_len);
  return tiles * (problem_.q_heads / grid_.heads);
}

int64_t TileTasks::first_of_kv_head(int64_t kv_head) const {
  const int64_t sequence = kv_head / problem_.kv_heads;
  if (sequence == problem_.batch) return count_;
  const int64_t group = problem_.q_heads / problem_.kv_heads / grid_.heads;
  const int64_t tiles = grid_.tiles_of(addresses_.sequence(sequence).band.q_len);
  return first_of(sequence) + kv_head % problem_.kv_heads * group * tiles;
}

TilePlace TileTasks::place(int64_t task) const {
  TilePlace place;
  const int64_t heads = problem_.q_heads / grid_.heads;
  int64_t sequence = 0;
  if (problem_.packed) {
    const int64_t* const after =
        std::upper_bound(table_, table_ + problem_.batch + 1, task / heads);
    sequence = after - table_ - 1;
  } else {
    sequence = task / (grid_.tiles_of(problem_.q_len) * heads);
  }
  const int64_t first = first_of(sequence);
  place.sequence = addresses_.sequence(sequence);
  const semantics::Band& band = place.sequence.band;
  const int64_t tiles = grid_.tiles_of(band.q_len);
  place.head = (task - first) / tiles * grid_.heads;
  int64_t tile = (task - first) % tiles;
  if (band.right != semantics::kUnbounded) tile = tiles - 1 - tile;  // causal: late rows see more
  place.first_row = tile * grid_.rows;
  place.rows =
      static_cast<int>(std::min<int64_t>(grid_.rows, band.q_len * grid_.heads - place.first_row));
  return place;
}

void fill_intervals(const semantics::Band& band, const TilePlace& place, const TileGrid& grid,
                    int64_t* key_begin, int64_t* key_end) {
  const int lanes = (place.rows + grid.width - 1) / grid.width * grid.width;
  for (int lane = 0; lane < lanes; ++lane) {
    const semantics::KeyRange keys =
        band.keys_of_row(row_of(grid, place, std::min(lane, place.rows - 1)).row);
    key_begin[lane] = keys.begin;
    key_end[lane] = keys.end;
  }
}

void fill_tile(const Problem& problem, const Tensors& tensors, const Addresses& addresses,
               const TilePlace& place, Tile& tile) {
  const Sequence& sequence = place.sequence;
  const int64_t kv_head = place.head / (problem.q_heads / problem.kv_heads);
  tile.q = addresses.q_rows(tensors.q, sequence, place.head, place.first_row);
  tile.k = addresses.kv_rows(tensors.k, sequence, kv_head, 0);
  tile.v = addresses.kv_rows(tensors.v, sequence, kv_head, 0);
  tile.rows = place.rows;
  tile.first_row = place.first_row;
  tile.diagonal = static_cast<double>(place.first_row + sequence.band.off);
  tile.dropout_head = static_cast<uint64_t>(sequence.index * problem.q_heads + place.head);
  tile.slope = addresses.slope(sequence, place.head);
  tile.sink = addresses.sink(place.head);
}

}  // namespace tilewise::cpu
