// Where the elements of a Case's tensors lie: shapes, strides and gaps, without memory.
// Internal to src/case; docs/case.md describes the layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "case/case.h"
#include "case/case_data.h"
#include "problem.h"

namespace tilewise {

// Rows after the last sequence of a packed batch: nobody may read or write them.
inline constexpr int64_t kTailRows = 3;

// One allocation: the views that share it, with their first element's offset in it.
struct Placement {
  struct View {
    Arg arg;
    Tensor tensor;       // data is null
    int64_t offset = 0;  // elements from the start of the allocation
  };
  std::vector<View> views;
  DType dtype = DType::none;
  int64_t elements = 0;  // of the allocation, gaps included
};

// Every tensor of the Case, outputs included. For layout=packed_qkv q, k and v share one
// allocation, and so do the gradients that are wanted among d_q, d_k and d_v.
std::vector<Placement> placements_of(const Case& c);

// Whether the Case has this tensor.
bool uses(const Case& c, Arg arg);
// Written by forward or backward.
bool is_output(Arg arg);

// Calls visit(offset in elements from the view's first, index) for every element that belongs to
// a sequence.
using ElementVisitor = std::function<void(int64_t, const ElementIndex&)>;
void for_each_element(const Case& c, Arg arg, const Tensor& tensor, const ElementVisitor& visit);

}  // namespace tilewise
