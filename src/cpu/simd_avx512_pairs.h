// AVX-512 vectors that multiply pairs (AVX512-BF16). See simd.h for the list of operations.
#pragma once

#include "cpu/simd_avx512.h"

namespace tilewise::cpu {

struct Avx512Pairs : Avx512 {
  static TW_INLINE Vector dot(Vector a, Vector b, Vector sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static TW_INLINE Vector pack(Vector low, Vector high) {
    const auto apart = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                         23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, apart));
  }
  static TW_INLINE Vector load_words(const uint16_t* p) { return _mm512_loadu_ps(p); }
  static TW_INLINE Vector join_words(const uint16_t* low, const uint16_t* high) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high));
    const __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_cvtepu16_epi32(a), upper));
  }
};

// For short or masked problems, and for a few rows: see Avx512Narrow and Avx512Thin.
struct Avx512PairsNarrow : Avx512Pairs {
  static constexpr int kScoreVectors = Avx512Narrow::kScoreVectors;
};
struct Avx512PairsThin : Avx512Pairs {
  static constexpr int kScoreVectors = Avx512Thin::kScoreVectors;
};

}  // namespace tilewise::cpu
