// The problems of `tilewise demo`: recorded q, k, v of a language model's layers, and a long
// synthetic one; and how far results are from float64.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "case/case_tensors.h"
#include "cli/tensor_file.h"
#include "reference/reference.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {

struct DemoProblem {
  std::vector<HostTensor> owned;           // recorded data and its results
  std::unique_ptr<CaseTensors> generated;  // or synthetic ones
  Tensors forward;
  Tensors backward;
  Options options;
  reference::Selection selection;  // rows and keys that are compared
  reference::RowSums sums = reference::RowSums::computed;
  // Float64 results; those of RowSums::given hold for the results they were made from only.
  std::optional<reference::Result64> result;
  std::optional<reference::Gradients64> gradients;
};

// smollm2-layer*.safetensors of `folder`, or of tests/data beside the checkout of this program or
// the working directory when it is "". Throws InputError that says where it looked.
std::vector<DemoProblem> recorded_problems(const std::string& folder);

// One head of `length` rows, d 64, fp32, no mask, normal data.
DemoProblem long_problem(int64_t length);

// Computes the float64 results of all problems whose sums are `computed`, one thread each.
void compute_float64(std::vector<DemoProblem>& problems);

// Largest |result - float64| over the selection, as a share of the largest |float64| of its tensor:
// of out, or the worst of d_q, d_k and d_v. `problem` is that of the plan which wrote the results.
double largest_error(DemoProblem& demo, const Problem& problem);

}  // namespace tilewise::cli
