// Gathers the rows of a group of query heads; see head_group.h.
#include "cpu/head_group.h"

#include <cstring>

namespace tilewise::cpu {

namespace {

int64_t element_bytes(const Problem& problem) { return problem.dtype == DType::f32 ? 4 : 2; }

}  // namespace

GroupScratch cut_group(const Problem& problem, const TileGrid& grid, WorkspaceCutter& cutter) {
  const int64_t bytes = element_bytes(problem);
  GroupScratch scratch;
  scratch.lanes = cutter.take<GroupLane>(grid.rows);
  scratch.queries = cutter.take<char>(grid.rows * problem.head_dim * bytes);
  scratch.outs = cutter.take<char>(grid.rows * problem.value_dim * bytes);
  scratch.lse = cutter.take<float>(grid.rows);
  return scratch;
}

void HeadGroup::gather(const TilePlace& place, const GroupScratch& scratch,
                       ForwardTile& tile) const {
  TilePlace first = place;
  first.first_row = row_of(grid_, place, 0).row;
  fill_tile(problem_, tensors_, addresses_, first, tile);
  const auto bytes = static_cast<size_t>(problem_.head_dim * element_bytes(problem_));
  const int lanes = (place.rows + grid_.width - 1) / grid_.width * grid_.width;
  for (int lane = 0; lane < lanes; ++lane) {
    // Lanes past the last row repeat it.
    const HeadRow own = row_of(grid_, place, lane < place.rows ? lane : place.rows - 1);
    scratch.lanes[lane] = {own.row - first.first_row, own.head - place.head,
                           addresses_.slope(place.sequence, own.head), addresses_.sink(own.head)};
    if (lane >= place.rows) continue;
    std::memcpy(scratch.queries + static_cast<size_t>(lane) * bytes,
                addresses_.q_rows(tensors_.q, place.sequence, own.head, own.row).data, bytes);
  }
  tile.lanes = scratch.lanes;
  tile.q = {scratch.queries, problem_.head_dim};
  tile.out = {scratch.outs, problem_.value_dim};
  tile.lse = scratch.lse;
}

void HeadGroup::hand_out(const TilePlace& place, const ForwardTile& tile) const {
  const auto bytes = static_cast<size_t>(problem_.value_dim * element_bytes(problem_));
  const char* const outs = static_cast<const char*>(tile.out.data);
  for (int lane = 0; lane < place.rows; ++lane) {
    const HeadRow own = row_of(grid_, place, lane);
    std::memcpy(addresses_.q_output(tensors_.out, place.sequence, own.head, own.row).data,
                outs + static_cast<size_t>(lane) * bytes, bytes);
    float* const lse = addresses_.statistic(tensors_.lse, place.sequence, own.head, own.row);
    if (lse != nullptr) *lse = tile.lse[lane];
  }
}

}  // namespace tilewise::cpu
