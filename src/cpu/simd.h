// The thin SIMD layer: what a vector type must offer to the kernels. One struct for each
// instruction set (simd_scalar.h, simd_avx2.h, simd_avx512.h, simd_neon.h), all static, always
// inlined:
//
//   kLanes, Vector, Mask                  floats of one vector
//   Words, multiply_wide                  as many 32-bit words; ^ + & >= are the compiler's
//   kScoreRows, kScoreVectors             micro-kernel shape of products with queries in lanes
//   kGradientRows, kGradientVectors       and of products with head_dim in lanes
//   load store load_first store_first     unaligned; *_first: the first n lanes, the rest 0
//   set1 add sub mul fma div max min abs  max(a, b), min(a, b) return b when either is NaN
//   less select sign_of
//   exp2_parts exp2_scaled                x as fraction in [-0.5, 0.5] and power; p * 2^power,
//   where
//                                         `power` is in the set's own form; 0 below 2^-126
//   kAnyExp2                              whether they take x from 128 up
//   load_bf16 load_f16 store_bf16 store_f16   one vector of 16-bit elements, to nearest even
//   transpose                             kLanes vectors of kLanes
//   store_strips                          one vector as strips of kScoreRows columns
//   pin                                   keeps the compiler from folding a load into its use
//
// Where vectors multiply pairs of bf16 (pairs.h), a vector also holds 2 * kLanes words:
//
//   dot                                   a.low b.low + a.high b.high + sum, in floats
//   pack                                  two vectors of floats to nearest even: low, high halves
//   load_words join_words                 2 * kLanes words; or kLanes low and as many high halves
//
// An instruction-set unit (isa_*.cc) includes no standard header with inline functions and calls
// none of the inline functions of src/: the linker may keep its copy, compiled for an instruction
// set the machine lacks. Kernels are templates over the struct, so their names differ by set.
#pragma once

#include <stdint.h>

#define TW_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define TW_UNROLL _Pragma("unroll")
#else
#define TW_UNROLL _Pragma("GCC unroll 32")
#endif

namespace tilewise::cpu {

// Whether products are of pairs of bf16.
template <class S>
constexpr bool kPairs = requires(typename S::Vector v) {
  S::dot(v, v, v);
};

template <class S>
TW_INLINE typename S::Vector multiply_add(typename S::Vector a, typename S::Vector b,
                                          typename S::Vector sum) {
  if constexpr (kPairs<S>) {
    return S::dot(a, b, sum);
  } else {
    return S::fma(a, b, sum);
  }
}

template <class S>
struct Exp2Parts {
  typename S::Vector fraction;
  typename S::Vector power;
};

// Where no instruction rounds and scales: adding 1.5 * 2^23 + 127 leaves round(x) + 127, the
// exponent field of the power of two, in the low bits. x <= 127 or NaN.
template <class S>
TW_INLINE Exp2Parts<S> exp2_parts_by_adding(typename S::Vector x) {
  const auto shift = S::set1(12582912.0f + 127.0f);
  x = S::max(S::set1(-127.0f), x);
  const auto power = S::add(x, shift);
  return {S::sub(x, S::sub(power, shift)), power};
}

}  // namespace tilewise::cpu
