// Where the rows of a head lie: from tensors in any layout, dense or packed, to addresses. All
// offsets are int64. The stride of a dimension of size 1 never matters: its index is 0.
#pragma once

#include <cstdint>

#include "cpu/call.h"
#include "problem.h"
#include "semantics/mask.h"

namespace tilewise::cpu {

// One sequence of the batch. Rows count from its first row.
struct Sequence {
  int64_t index = 0;
  int64_t q_begin = 0;     // its first row in a packed tensor; 0 for dense
  int64_t kv_begin = 0;    // the same for keys
  semantics::Band band{};  // lengths and mask
};

class Addresses {
 public:
  Addresses(const Problem& problem, const Tensors& tensors)
      : problem_(problem), tensors_(tensors), rule_(problem.mask_rule()) {}

  Sequence sequence(int64_t index) const;

  // Row `row` of one head of a [b, s, h, d] or [total, h, d] tensor; null when it is not given.
  Rows q_rows(const Tensor& tensor, const Sequence& sequence, int64_t head, int64_t row) const {
    return rows_at(tensor, sequence.index, head, sequence.q_begin + row);
  }
  Rows kv_rows(const Tensor& tensor, const Sequence& sequence, int64_t kv_head, int64_t row) const {
    return rows_at(tensor, sequence.index, kv_head, sequence.kv_begin + row);
  }
  OutputRows q_output(const Tensor& tensor, const Sequence& sequence, int64_t head,
                      int64_t row) const {
    return writable(q_rows(tensor, sequence, head, row));
  }
  OutputRows kv_output(const Tensor& tensor, const Sequence& sequence, int64_t kv_head,
                       int64_t row) const {
    return writable(kv_rows(tensor, sequence, kv_head, row));
  }
  // Element `row` of one head of a [b, h, s] or [h, total] tensor; null when it is not given.
  float* statistic(const Tensor& tensor, const Sequence& sequence, int64_t head, int64_t row) const;
  float slope(const Sequence& sequence, int64_t head) const;
  float sink(int64_t head) const;

 private:
  Rows rows_at(const Tensor& tensor, int64_t sequence, int64_t head, int64_t row) const;
  static OutputRows writable(const Rows& rows) {
    return {const_cast<void*>(rows.data), rows.stride};
  }

  const Problem& problem_;
  const Tensors& tensors_;
  semantics::MaskRule rule_;
};

// What the kernels need to know besides addresses. panels and block_keys are left to the caller.
Settings settings_of(const Problem& problem);

// Whether blocks of a tensor's rows should be copied to scratch before the micro-kernels run.
bool must_copy_rows(const Problem& problem, Arg arg);

}  // namespace tilewise::cpu
