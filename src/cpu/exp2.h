// exp2 and tanh of a vector.
//
// exp2(x) = 2^n p(x - n), n = round(x), p of degree 5 with p(0) = 1: exactly 1 at 0, within
// 1.7e-7 elsewhere (1.9e-7 without fused multiply-add). Below -126.5 the exponent field is 0 and
// the result exactly 0, never a clamped 2^-126: a masked weight must not let a huge value through.
// NaN gives NaN: the power of two is multiplied, not added to the exponent, so that the payload of
// a NaN does not matter.
#pragma once

#include "cpu/simd.h"

namespace tilewise::cpu {

constexpr float kLowestFloat = -3.40282347e38f;
constexpr float kInfinity = __builtin_huge_valf();
constexpr double kLog2e = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

// In place, x <= 127 or NaN. Several vectors go through each step together: the chain of steps is
// 45 cycles long, and one vector after the other the scheduler sees too few of them at once.
template <class S, int kCount>
TW_INLINE void exp2_below_128(typename S::Vector (&x)[kCount]) {
  using Vector = typename S::Vector;
  constexpr float kPolynomial[] = {0.00967151299f, 0.0555073358f, 0.240222424f, 0.693147004f, 1.0f};
  decltype(S::exp2_parts(x[0])) parts[kCount];
  Vector p[kCount];
  TW_UNROLL for (int i = 0; i < kCount; ++i) parts[i] = S::exp2_parts(x[i]);
  TW_UNROLL for (int i = 0; i < kCount; ++i) {
    p[i] = S::fma(parts[i].fraction, S::set1(0.00132647273f), S::set1(kPolynomial[0]));
  }
  TW_UNROLL for (int k = 1; k < 5; ++k) {
    TW_UNROLL for (int i = 0; i < kCount; ++i) {
      p[i] = S::fma(parts[i].fraction, p[i], S::set1(kPolynomial[k]));
    }
  }
  TW_UNROLL for (int i = 0; i < kCount; ++i) x[i] = S::exp2_scaled(p[i], parts[i].power);
}

template <class S>
TW_INLINE typename S::Vector exp2_below_128(typename S::Vector x) {
  typename S::Vector one[1] = {x};
  exp2_below_128<S, 1>(one);
  return one[0];
}

// Any x: +inf from 128 up.
template <class S, int kCount>
TW_INLINE void exp2_any(typename S::Vector (&x)[kCount]) {
  if constexpr (!S::kAnyExp2) {
    TW_UNROLL for (int i = 0; i < kCount; ++i) x[i] = S::min(S::set1(128.0f), x[i]);
  }
  exp2_below_128<S, kCount>(x);
}

template <class S>
TW_INLINE typename S::Vector exp2_any(typename S::Vector x) {
  typename S::Vector one[1] = {x};
  exp2_any<S, 1>(one);
  return one[0];
}

// Relative error below 3e-7 for every x: a polynomial below 0.625, where 1 - 2 / (e^2x + 1) would
// cancel.
template <class S>
TW_INLINE typename S::Vector tanh_of(typename S::Vector x) {
  using Vector = typename S::Vector;
  const Vector size = S::abs(x);
  const Vector square = S::mul(x, x);
  Vector p = S::fma(square, S::set1(-0.00570498407f), S::set1(0.0206390843f));
  p = S::fma(square, p, S::set1(-0.0537397154f));
  p = S::fma(square, p, S::set1(0.133314416f));
  p = S::fma(square, p, S::set1(-0.333332807f));
  const Vector small = S::fma(S::mul(x, square), p, x);
  const Vector power = exp2_any<S>(S::mul(size, S::set1(static_cast<float>(2 * kLog2e))));
  const Vector rest = S::div(S::set1(2.0f), S::add(power, S::set1(1.0f)));
  const Vector large = S::sign_of(x, S::sub(S::set1(1.0f), rest));
  return S::select(S::less(size, S::set1(0.625f)), small, large);
}

}  // namespace tilewise::cpu
