// The AVX-512 vector (F, BW, DQ, VL): 16 floats. See simd.h for the list of operations.
#pragma once

#include <immintrin.h>

#include "cpu/simd.h"

namespace tilewise::cpu {

struct Avx512 {
  static constexpr int kLanes = 16;
  // 32 registers: 24 sums, three vectors of B; A comes as a broadcast memory operand.
  static constexpr int kScoreRows = 8;
  static constexpr int kScoreVectors = 3;
  static constexpr int kGradientRows = 8;
  static constexpr int kGradientVectors = 2;
  using Vector = __m512;
  using Mask = __mmask16;

  static TW_INLINE Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static TW_INLINE void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
  static TW_INLINE __mmask16 first_lanes(int n) {
    return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u);
  }
  static TW_INLINE Vector load_first(const float* p, int n) {
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
  }
  static TW_INLINE void store_first(float* p, int n, Vector v) {
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
  }
  static TW_INLINE Vector set1(float x) { return _mm512_set1_ps(x); }
  static TW_INLINE Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static TW_INLINE Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static TW_INLINE Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static TW_INLINE Vector div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static TW_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static TW_INLINE Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static TW_INLINE Vector min(Vector a, Vector b) { return _mm512_min_ps(a, b); }
  static TW_INLINE Vector abs(Vector a) { return _mm512_abs_ps(a); }
  static TW_INLINE Mask less(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  // m ? a : b
  static TW_INLINE Vector select(Mask m, Vector a, Vector b) {
    return _mm512_mask_blend_ps(m, b, a);
  }
  // |magnitude| with the sign of `sign`; magnitude >= 0.
  static TW_INLINE Vector sign_of(Vector sign, Vector magnitude) {
    return _mm512_or_ps(_mm512_and_ps(_mm512_set1_ps(-0.0f), sign), magnitude);
  }
  // The low nine bits of the float's pattern as sign and exponent of a new one.
  static TW_INLINE Vector power_of_two_bits(Vector t) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));
  }

  static TW_INLINE Vector load_bf16(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static TW_INLINE Vector load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static TW_INLINE void store_bf16(uint16_t* p, Vector v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i words = _mm512_mask_blend_epi32(nan, rounded, quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(words));
  }
  static TW_INLINE void store_f16(uint16_t* p, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  // Through memory: only packing needs it, once for each query tile.
  static TW_INLINE void transpose(Vector (&r)[16]) {
    alignas(64) float square[16 * 16];
    for (int i = 0; i < 16; ++i) _mm512_store_ps(square + 16 * i, r[i]);
    const __m512i column =
        _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
    for (int i = 0; i < 16; ++i) r[i] = _mm512_i32gather_ps(column, square + i, 4);
  }

  static TW_INLINE void pin(Vector& v) { asm("" : "+v"(v)); }
};

}  // namespace tilewise::cpu
