// The AVX2 vector: 8 floats, with FMA and F16C. See simd.h for the list of operations.
#pragma once

#include <immintrin.h>

#include "cpu/simd.h"

namespace tilewise::cpu {

struct Avx2 {
  static constexpr int kLanes = 8;
  // 16 registers: 12 sums, the vectors of B and one broadcast.
  static constexpr int kScoreRows = 4;
  static constexpr int kScoreVectors = 3;
  static constexpr int kGradientRows = 6;
  static constexpr int kGradientVectors = 2;
  using Vector = __m256;
  using Mask = __m256;
  using Words = uint32_t __attribute__((vector_size(32)));

  static TW_INLINE Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static TW_INLINE void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
  static TW_INLINE __m256i first_lanes(int n) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), index);
  }
  static TW_INLINE Vector load_first(const float* p, int n) {
    return _mm256_maskload_ps(p, first_lanes(n));
  }
  static TW_INLINE void store_first(float* p, int n, Vector v) {
    _mm256_maskstore_ps(p, first_lanes(n), v);
  }
  static TW_INLINE Vector set1(float x) { return _mm256_set1_ps(x); }
  static TW_INLINE Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static TW_INLINE Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  static TW_INLINE Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static TW_INLINE Vector div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  static TW_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static TW_INLINE Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static TW_INLINE Vector min(Vector a, Vector b) { return _mm256_min_ps(a, b); }
  static TW_INLINE Vector abs(Vector a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static TW_INLINE Mask less(Vector a, Vector b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  // m ? a : b
  static TW_INLINE Vector select(Mask m, Vector a, Vector b) { return _mm256_blendv_ps(b, a, m); }
  // |magnitude| with the sign of `sign`; magnitude >= 0.
  static TW_INLINE Vector sign_of(Vector sign, Vector magnitude) {
    return _mm256_or_ps(_mm256_and_ps(_mm256_set1_ps(-0.0f), sign), magnitude);
  }
  static constexpr bool kAnyExp2 = false;
  static TW_INLINE Exp2Parts<Avx2> exp2_parts(Vector x) { return exp2_parts_by_adding<Avx2>(x); }
  static TW_INLINE Vector exp2_scaled(Vector p, Vector power) {
    const __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(power), 23);
    return mul(p, _mm256_castsi256_ps(bits));
  }

  static TW_INLINE Vector load_bf16(const uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static TW_INLINE Vector load_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static TW_INLINE void store_bf16(uint16_t* p, Vector v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m256i packed = _mm256_packus_epi32(words, words);
    const __m256i ordered = _mm256_permute4x64_epi64(packed, 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(ordered));
  }
  static TW_INLINE void store_f16(uint16_t* p, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  static TW_INLINE void transpose(Vector (&r)[8]) {
    Vector t[8];
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    TW_UNROLL for (int i = 0; i < 2; ++i) {
      r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
      r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
      r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
      r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
      t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    TW_UNROLL for (int i = 0; i < 8; ++i) r[i] = t[i];
  }

  // The first `count` times kColumns lanes, `strip` floats apart.
  template <int kColumns>
  static TW_INLINE void store_strips(float* p, int64_t strip, int count, Vector v) {
    static_assert(kColumns == 4);
    _mm_storeu_ps(p, _mm256_castps256_ps128(v));
    if (count > 1) _mm_storeu_ps(p + strip, _mm256_extractf128_ps(v, 1));
  }

  // The low halves of x times m; `high`: the high ones.
  static TW_INLINE Words multiply_wide(Words x, uint32_t m, Words& high) {
    const auto words = reinterpret_cast<__m256i>(x);
    const __m256i factor = _mm256_set1_epi32(static_cast<int>(m));
    const __m256i even = _mm256_mul_epu32(words, factor);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(words, 32), factor);
    high = reinterpret_cast<Words>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa));
    return reinterpret_cast<Words>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa));
  }

  static TW_INLINE void pin(Vector& v) { asm("" : "+x"(v)); }
};

// For a few rows: one vector a panel, and as many keys at a time as sums hide their latency.
struct Avx2Thin : Avx2 {
  static constexpr int kScoreRows = 8;
  static constexpr int kScoreVectors = 1;
  template <int kColumns>
  static TW_INLINE void store_strips(float* p, int64_t, int, Vector v) {
    static_assert(kColumns == kLanes);
    store(p, v);
  }
};

}  // namespace tilewise::cpu
