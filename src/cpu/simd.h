// The thin SIMD layer: what a vector type must offer to the kernels. One struct for each
// instruction set (simd_scalar.h, simd_avx2.h, simd_avx512.h), all static, always inlined:
//
//   kLanes, Vector, Mask                  floats of one vector
//   kScoreRows, kScoreVectors             micro-kernel shape of products with queries in lanes
//   kGradientRows, kGradientVectors       and of products with head_dim in lanes
//   load store load_first store_first     unaligned; *_first: the first n lanes, the rest 0
//   set1 add sub mul fma div max min abs  max(a, b), min(a, b) return b when either is NaN
//   less select sign_of power_of_two_bits
//   load_bf16 load_f16 store_bf16 store_f16   one vector of 16-bit elements, to nearest even
//   transpose                             kLanes vectors of kLanes
//   pin                                   keeps the compiler from folding a load into its use
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
