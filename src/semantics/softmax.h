// The online softmax: the recurrence that lets a row be summed tile by tile and stay exact.
//
//   m' = max(m, tile max);  l' = l * exp(m - m') + tile sum;  o' = o * exp(m - m') + tile p v
//   merge of partial results: w_p = exp(lse_p - max), out = sum w_p out_p / sum w_p
//
// -inf is the empty maximum: a row that has seen nothing subtracts 0 instead, so that
// -inf - -inf never appears (contracts: running max, merge).
#pragma once

namespace tilewise {
namespace semantics {

// What to subtract before exp: the running maximum, or 0 while it is still -inf.
template <class Real>
inline Real safe_max(Real running_max) {
  return running_max == -__builtin_huge_val() ? Real(0) : running_max;
}

}  // namespace semantics
}  // namespace tilewise
