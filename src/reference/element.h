// One element of a tensor as a float64, and back: exact when read, rounded to nearest even (in one
// step, straight from float64) when written. NaN stays NaN; values past the largest finite become
// infinite. The reference, the test tensors and the verifier use these, the kernels do not.
#pragma once

#include <cstdint>

#include "tilewise/tilewise.hpp"

namespace tilewise::reference {

// Element `index` of an array of `dtype` (f32, bf16, f16 or i32).
double read_element(const void* data, DType dtype, int64_t index);
void write_element(void* data, DType dtype, int64_t index, double value);

// `value` as `dtype` would hold it.
double round_to(DType dtype, double value);

// Distance between 1 and the next value below it, halved: 2^-24, 2^-8, 2^-11.
double unit_roundoff(DType dtype);

// Below this numbers are spaced evenly, unit_roundoff * smallest_normal * 2 apart: 2^-126, 2^-14.
double smallest_normal(DType dtype);

}  // namespace tilewise::reference
