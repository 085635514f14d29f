// From a task number to a query tile: head-major order, so that all threads read the same K and V,
// and longest tiles first where the mask makes lengths differ.
#pragma once

#include <cstdint>

#include "cpu/addresses.h"
#include "cpu/call.h"
#include "problem.h"

namespace tilewise::cpu {

// How the rows of all heads are cut. Where `heads` is not 1, tiles cut the rows of as many heads in
// turn (row 0 of each, row 1 of each, ...), which share a kv head.
struct TileGrid {
  int rows = 0;   // of a tile: panels * width
  int width = 0;  // of a panel
  int64_t heads = 1;
  int64_t tiles_of(int64_t q_len) const { return (q_len * heads + rows - 1) / rows; }
};

// One tile of the grid.
struct TilePlace {
  Sequence sequence;
  int64_t head = 0;       // the first
  int64_t first_row = 0;  // in turn
  int rows = 0;
};

// The row in a lane of a tile.
struct HeadRow {
  int64_t head = 0;
  int64_t row = 0;
};
inline HeadRow row_of(const TileGrid& grid, const TilePlace& place, int lane) {
  const int64_t in_turn = place.first_row + lane;
  return {place.head + in_turn % grid.heads, in_turn / grid.heads};
}

// The tasks of a call: sequence, then head or group of heads, then tile. A packed batch needs a
// table of batch + 1 entries, which the caller provides; dense batches need none.
class TileTasks {
 public:
  TileTasks(const Problem& problem, const Addresses& addresses, const TileGrid& grid,
            int64_t* table);
  int64_t count() const { return count_; }
  TilePlace place(int64_t task) const;
  // The first task of a sequence; those of a head follow each other.
  int64_t first_of(int64_t sequence) const;
  // The same for a kv head, counted sequence by sequence; of one past the last: count().
  int64_t first_of_kv_head(int64_t kv_head) const;

 private:
  const Problem& problem_;
  const Addresses& addresses_;
  TileGrid grid_;
  int64_t* table_;  // tiles before each sequence, packed only
  int64_t count_ = 0;
};

// Visible keys of every lane of a tile; lanes past its rows repeat the last row.
void fill_intervals(const semantics::Band& band, const TilePlace& place, const TileGrid& grid,
                    int64_t* key_begin, int64_t* key_end);

// The fields of a tile of one head that forward and backward share. key_begin, key_end: see
// fill_intervals().
void fill_tile(const Problem& problem, const Tensors& tensors, const Addresses& addresses,
               const TilePlace& place, Tile& tile);

}  // namespace tilewise::cpu
