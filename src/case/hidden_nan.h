// HiddenNan: the one place that knows where a GPU kernel may turn a row NaN that float64 keeps
// clean (docs/contracts.md, "visible data"). Kernels multiply whole tiles of V, and a hidden weight
// is 0, but 0 * NaN is NaN:
//
//   out[i, c] may be NaN where v[j, c] is NaN or Inf, key j is hidden from row i, and a row of i's
//   query tile sees a key of j's key tile
//
// lse may not, nor may NaN in k spread: hidden scores are selected away.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "problem.h"
#include "reference/reference.h"
#include "semantics/mask.h"

namespace tilewise {

class HiddenNan {
 public:
  // The largest tiles any kernel has, counted from the first row and key of a sequence.
  static constexpr int64_t kTileRows = 128;
  static constexpr int64_t kTileKeys = 128;

  HiddenNan(const Problem& problem, const Tensors& tensors);
  bool may_reach(const reference::Position& row, int64_t q_head, int64_t column) const;

 private:
  int64_t heads_per_kv_ = 1;
  std::vector<semantics::Band> bands_;  // of each sequence
  // (sequence, kv head, column) -> keys whose value there is not finite
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<int64_t>> keys_;
};

}  // namespace tilewise
