// How many (row, key) pairs of a sequence a mask shows, and how much of each tensor the tiles of a
// schedule touch: the sums of the IO model over one head. O(rows) and O(tiles).
#pragma once

#include <cstdint>

#include "semantics/mask.h"

namespace tilewise::cost_model {

double visible_pairs(const semantics::Band& band);

// A walk over the tiles that the mask does not empty, ends of the sequence not padded.
struct TileWalk {
  double pairs = 0;   // computed
  double rows = 0;    // of q (and out) that are visited, summed over the outer tiles
  double keys = 0;    // of k (and v), summed over the outer tiles
  int64_t tiles = 0;  // outer tiles that visit anything
};

// Query tiles outside: each visits the key tiles that one of its rows sees.
TileWalk walk_query_tiles(const semantics::Band& band, int64_t tile_rows, int64_t tile_keys);
// Key tiles outside: each visits the query tiles that see one of its keys.
TileWalk walk_key_tiles(const semantics::Band& band, int64_t tile_rows, int64_t tile_keys);

}  // namespace tilewise::cost_model
