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
  using Words = uint32_t __attribute__((vector_size(64)));

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
  static constexpr bool kAnyExp2 = true;
  static TW_INLINE Exp2Parts<Avx512> exp2_parts(Vector x) {
    const Vector fraction = _mm512_reduce_ps(x, 0x08);  // x - round(x); 0 of an infinity
    return {fraction, _mm512_sub_ps(x, fraction)};
  }
  static TW_INLINE Vector exp2_scaled(Vector p, Vector power) {
    const Mask normal = _mm512_cmp_ps_mask(power, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(normal, p, power);
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

  // 4 x 4 inside the quarters of each four rows, then the quarters themselves.
  static TW_INLINE void transpose(Vector (&r)[16]) {
    Vector t[16];
    TW_UNROLL for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      r[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
      r[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
      r[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
      r[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
      t[i + 8] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
      t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      r[i] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
      r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
      r[i + 4] = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
      r[i + 12] = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
    }
  }
  // The first `count` times kColumns lanes, `strip` floats apart.
  template <int kColumns>
  static TW_INLINE void store_strips(float* p, int64_t strip, int count, Vector v) {
    static_assert(kColumns == 8);
    _mm256_storeu_ps(p, _mm512_castps512_ps256(v));
    if (count > 1) _mm256_storeu_ps(p + strip, _mm512_extractf32x8_ps(v, 1));
  }

  // The low halves of x times m; `high`: the high ones.
  static TW_INLINE Words multiply_wide(Words x, uint32_t m, Words& high) {
    const auto words = reinterpret_cast<__m512i>(x);
    const __m512i factor = _mm512_set1_epi32(static_cast<int>(m));
    const __m512i even = _mm512_mul_epu32(words, factor);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(words, 32), factor);
    high =
        reinterpret_cast<Words>(_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd));
    return reinterpret_cast<Words>(
        _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)));
  }

  static TW_INLINE void pin(Vector& v) { asm("" : "+v"(v)); }
};

// For short or masked problems: fewer idle lanes, and less work past a diagonal.
struct Avx512Narrow : Avx512 {
  static constexpr int kScoreVectors = 2;
};

// For a few rows: one vector a panel.
struct Avx512Thin : Avx512 {
  static constexpr int kScoreVectors = 1;
};

// What the kernels on matrix tiles ask of vectors beside. Packed: 2 * kLanes words of bf16.
#if defined(__AVX512BF16__)
struct Avx512Tiles : Avx512 {
  using Packed = __m512i;

  static TW_INLINE Vector lane_numbers() {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  static TW_INLINE float highest(Vector v) { return _mm512_reduce_max_ps(v); }
  static TW_INLINE float total(Vector v) { return _mm512_reduce_add_ps(v); }
  static TW_INLINE float first(Vector v) { return _mm512_cvtss_f32(v); }
  // a * b - c
  static TW_INLINE Vector fms(Vector a, Vector b, Vector c) { return _mm512_fmsub_ps(a, b, c); }
  // x - floor(x), 0 of an infinity; p * 2^floor(x), 0 at -inf.
  static TW_INLINE Vector above_floor(Vector x) { return _mm512_reduce_ps(x, 0x09); }
  static TW_INLINE Vector scaled_by_floor(Vector p, Vector x) { return _mm512_scalef_ps(p, x); }

  // To nearest even; a before b.
  static TW_INLINE Packed pack(Vector a, Vector b) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
  }
  // The first half of the words between those of the second: pairs (a, b).
  static TW_INLINE Packed interleave(Packed words) {
    alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), words);
  }
  static TW_INLINE void store_packed(uint16_t* p, Packed words) { _mm512_storeu_si512(p, words); }
  static TW_INLINE Packed none_packed() { return _mm512_setzero_si512(); }
  // Of weights, by their bits: NaN is the largest.
  static TW_INLINE Packed max_packed(Packed a, Packed b) { return _mm512_max_epu16(a, b); }
  // Whether one is above 2^15 or NaN.
  static TW_INLINE bool any_large(Packed words) {
    return _mm512_cmpgt_epu16_mask(words, _mm512_set1_epi16(0x4700)) != 0;
  }
  // Lane i: low[i] below high[i].
  static TW_INLINE void store_pairs(float* p, const uint16_t* low, const uint16_t* high) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high));
    const __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16);
    _mm512_storeu_si512(p, _mm512_or_si512(_mm512_cvtepu16_epi32(a), upper));
  }
  static TW_INLINE void store_bf16(uint16_t* p, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
  }
};
#endif

}  // namespace tilewise::cpu
