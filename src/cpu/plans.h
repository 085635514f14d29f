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

// Vectors of a row of `dim` floats, in floats.
inline int64_t padded(int64_t dim, const Kernels& kernels) {
  return (dim + kernels.lanes - 1) / kernels.lanes * kernels.lanes;
}

}  // namespace tilewise::cpu
