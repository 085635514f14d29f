// Tiles of all query heads of a kv head. Where q is short, rows of one head leave most lanes of a
// panel empty; the rows of a group in turn fill them, and K and V are read once for the group. The
// kernels see rows that lie together: they are gathered here, and the results handed out.
#pragma once

#include "cpu/addresses.h"
#include "cpu/tiles.h"
#include "cpu/workspace.h"

namespace tilewise::cpu {

// The scratch of one worker.
struct GroupScratch {
  GroupLane* lanes = nullptr;  // [rows, whole panels]
  char* queries = nullptr;     // [rows, head_dim] elements
  char* outs = nullptr;        // [rows, value_dim] elements
  float* lse = nullptr;        // [rows]
};
GroupScratch cut_group(const Problem& problem, const TileGrid& grid, WorkspaceCutter& cutter);

class HeadGroup {
 public:
  HeadGroup(const Problem& problem, const Tensors& tensors, const Addresses& addresses,
            const TileGrid& grid)
      : problem_(problem), tensors_(tensors), addresses_(addresses), grid_(grid) {}

  // Everything of a tile but its intervals and copies.
  void gather(const TilePlace& place, const GroupScratch& scratch, ForwardTile& tile) const;
  // out and lse of a tile that was attended to.
  void hand_out(const TilePlace& place, const ForwardTile& tile) const;

 private:
  const Problem& problem_;
  const Tensors& tensors_;
  const Addresses& addresses_;
  const TileGrid& grid_;
};

}  // namespace tilewise::cpu
