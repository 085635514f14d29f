// One pass over v finds what is not finite; a lookup then asks the mask about two tiles.
#include "case/hidden_nan.h"

#include <algorithm>
#include <cmath>

#include "reference/rows.h"

namespace tilewise {

HiddenNan::HiddenNan(const Problem& problem, const Tensors& tensors)
    : heads_per_kv_(problem.q_heads / std::max<int64_t>(1, problem.kv_heads)) {
  const std::vector<reference::Sequence> sequences = reference::sequences_of(problem, tensors);
  for (size_t s = 0; s < sequences.size(); ++s) {
    const reference::Sequence& sequence = sequences[s];
    bands_.push_back(semantics::make_band(problem.mask_rule(), sequence.q_len, sequence.kv_len));
    const auto index = static_cast<int64_t>(s);
    for (int64_t head = 0; head < problem.kv_heads; ++head) {
      const reference::Matrix v = reference::load_matrix(
          problem, tensors.v, {index, sequence.kv_begin, sequence.kv_len, head});
      for (int64_t key = 0; key < v.rows; ++key) {
        for (int64_t column = 0; column < v.cols; ++column) {
          if (!std::isfinite(v.row(key)[column])) keys_[{index, head, column}].push_back(key);
        }
      }
    }
  }
}

bool HiddenNan::may_reach(const reference::Position& row, int64_t q_head, int64_t column) const {
  const auto found = keys_.find({row.sequence, q_head / heads_per_kv_, column});
  if (found == keys_.end()) return false;
  const semantics::Band& band = bands_[static_cast<size_t>(row.sequence)];
  const int64_t first_row = row.index / kTileRows * kTileRows;
  const int64_t end_row = std::min<int64_t>(first_row + kTileRows, band.q_len);
  return std::any_of(found->second.begin(), found->second.end(), [&](int64_t key) {
    const int64_t first_key = key / kTileKeys * kTileKeys;
    return band.classify(first_row, end_row, first_key, first_key + kTileKeys) !=
           semantics::TileClass::empty;
  });
}

}  // namespace tilewise
