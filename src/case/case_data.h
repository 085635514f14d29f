// The numbers of a Case, one by one: a function of (seed, tensor, sequence, row, head, column) in
// integer arithmetic and exact float64 steps, hence the same on every machine and in every layout.
// Internal to src/case; docs/case.md says what each data= word means.
#pragma once

#include <cstdint>

#include "case/case.h"
#include "problem.h"

namespace tilewise {

struct ElementIndex {
  int64_t sequence = 0;
  int64_t row = 0;  // in the sequence
  int64_t head = 0;
  int64_t column = 0;
};

// Mixes all bits (the finaliser of the splitmix64 generator).
uint64_t mix_bits(uint64_t x);

// About normal, variance 1, |x| <= 3.47: the sum of four 16-bit uniform numbers.
double normal_from(uint64_t bits);

// The value of one element of an input; of sink, slopes and d_lse too.
double case_value(const Case& c, Arg arg, const ElementIndex& index);

}  // namespace tilewise
