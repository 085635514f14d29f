// Rows that see exactly one key and no sink: their softmax is 1 whatever the score, so out = v
// bitwise even where q.k overflows a float, and the score has no gradient but d_lse.
#pragma once

#include "cpu/addresses.h"
#include "cpu/tiles.h"

namespace tilewise::cpu {

// One row and its key.
struct SinglePair {
  Sequence sequence;
  int64_t head = 0;
  int64_t row = 0;
  int64_t key = 0;
};

// Overwrites out and lse of such a row.
void single_key_forward(const Problem& problem, const Tensors& tensors, const Addresses& addresses,
                        const SinglePair& pair);

// Adds what such a row gives to float sums: d_v += dO (under dropout), and d_k, d_q through d_lse
// alone. d_k is summed without `scale`, as the kernels do. Null = not wanted.
struct SinglePairSums {
  float* d_k = nullptr;  // [head_dim] of the key
  float* d_v = nullptr;  // [value_dim]
  float* d_q = nullptr;  // [head_dim] of the row
};
void single_key_backward(const Problem& problem, const Tensors& tensors, const Addresses& addresses,
                         const SinglePair& pair, const SinglePairSums& sums);

}  // namespace tilewise::cpu
