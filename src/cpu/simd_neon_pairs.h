// NEON vectors that multiply pairs (bf16 of Armv8.6). BFDOT rounds sums to odd and takes tiny
// numbers as 0. See simd.h for the list of operations.
#pragma once

#include "cpu/simd_neon.h"

namespace tilewise::cpu {

struct NeonPairs : Neon {
  static TW_INLINE Vector dot(Vector a, Vector b, Vector sum) {
    return vbfdotq_f32(sum, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
  }
  static TW_INLINE Vector pack(Vector low, Vector high) {
    return join(vreinterpret_u16_bf16(vcvt_bf16_f32(low)),
                vreinterpret_u16_bf16(vcvt_bf16_f32(high)));
  }
  static TW_INLINE Vector load_words(const uint16_t* p) {
    return vreinterpretq_f32_u16(vld1q_u16(p));
  }
  static TW_INLINE Vector join_words(const uint16_t* low, const uint16_t* high) {
    return join(vld1_u16(low), vld1_u16(high));
  }

 private:
  static TW_INLINE Vector join(uint16x4_t low, uint16x4_t high) {
    const uint16x4x2_t pairs = vzip_u16(low, high);
    return vreinterpretq_f32_u16(vcombine_u16(pairs.val[0], pairs.val[1]));
  }
};

// For a few rows: one vector a panel.
struct NeonPairsThin : NeonPairs {
  static constexpr int kScoreVectors = NeonThin::kScoreVectors;
};

}  // namespace tilewise::cpu
