// The plans of the two directions. Internal to src/cpu.
#pragma once

#include <memory>
#include <string>

#include "backend.h"
#include "cpu/call.h"

namespace tilewise::cpu {

std::unique_ptr<const BackendPlan> plan_forward(const Problem& problem, const Kernels& kernels);
std::unique_ptr<const BackendPlan> plan_backward(const Problem& problem, const Kernels& kernels);

// "name: value\n" of describe().
std::string described(const std::string& name, const std::string& value);

inline int64_t whole(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Vectors of a row of `dim` floats, in floats.
inline int64_t padded(int64_t dim, const Kernels& kernels) { return whole(dim, kernels.lanes); }

// bf16 whose scores are products and masks, and enough rows to fill matrix tiles.
inline bool fits_matrix_tiles(const Problem& problem, const Settings& settings,
                              const Kernels& kernels) {
  constexpr int64_t kFewestRows = 16;
  return kernels.tiles != nullptr && problem.dtype == DType::bf16 && settings.softcap == 0 &&
         !settings.has_alibi && !settings.dropout.active() && problem.q_len >= kFewestRows;
}

}  // namespace tilewise::cpu
