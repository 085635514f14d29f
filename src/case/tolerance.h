// The one tolerance rule: how far a result may lie from its float64 value.
//
//   |x - x64| <= u_out |x64| + c1 u_low low + c2 2^-24 high + floor
//
// low and high come with every value of the reference (reference/reference.h); docs/numerics.md
// derives them for out (A and (D + log2 n) G A of docs/contracts.md), lse and each gradient.
#pragma once

#include <cmath>
#include <limits>

#include "reference/element.h"
#include "tilewise/tilewise.hpp"

namespace tilewise {

// Fitted once on random Cases, then frozen: docs/numerics.md has the worst ratios.
inline constexpr double kC1 = 1.0;  // roundings of weights to the element type
inline constexpr double kC2 = 4.0;  // roundings of float32 sums

// What one element may be wrong by because small numbers vanish: half the smallest f16 subnormal;
// for the wide types weights below 2^-126, which float32 flushes, times values of any sane size.
inline double vanishing(DType stored) { return stored == DType::f16 ? 0x1p-25 : 0x1p-110; }

struct Expected {
  double value;
  double low;
  double high;
};

// `stored`: dtype of the tensor checked. `inputs`: dtype of q, k, v.
inline double error_bound(DType stored, DType inputs, const Expected& expected) {
  return reference::unit_roundoff(stored) * std::fabs(expected.value) +
         kC1 * reference::unit_roundoff(inputs) * expected.low + kC2 * 0x1p-24 * expected.high +
         vanishing(stored);
}

// Error / bound; infinite where NaN or an infinity stands on one side only.
inline double error_ratio(DType stored, DType inputs, const Expected& expected, double got) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (std::isnan(expected.value) || std::isnan(got)) {
    return std::isnan(expected.value) == std::isnan(got) ? 0.0 : kWrong;
  }
  if (std::isinf(expected.value)) return got == expected.value ? 0.0 : kWrong;
  const double bound = error_bound(stored, inputs, expected);
  if (std::isinf(got)) {  // right if the true value may round there
    const double farthest = std::fabs(expected.value) + bound;
    const bool overflows = std::isinf(reference::round_to(stored, farthest));
    return overflows && std::signbit(got) == std::signbit(expected.value) ? 0.0 : kWrong;
  }
  return std::fabs(got - expected.value) / bound;
}

}  // namespace tilewise
