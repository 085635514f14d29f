// The NEON vector of AArch64: 4 floats, with FMA; every such processor has it. 16-bit elements are
// converted as they are loaded and stored. See simd.h for the list of operations.
#pragma once

#include <arm_neon.h>

#include "cpu/simd.h"

namespace tilewise::cpu {

struct Neon {
  static constexpr int kLanes = 4;
  // 32 registers: 16 or 24 sums, the vectors of B and the broadcasts.
  static constexpr int kScoreRows = 4;
  static constexpr int kScoreVectors = 4;
  static constexpr int kGradientRows = 6;
  static constexpr int kGradientVectors = 4;
  using Vector = float32x4_t;
  using Mask = uint32x4_t;
  using Words = uint32x4_t;

  static TW_INLINE Vector load(const float* p) { return vld1q_f32(p); }
  static TW_INLINE void store(float* p, Vector v) { vst1q_f32(p, v); }
  static TW_INLINE Vector load_first(const float* p, int n) {
    if (n >= kLanes) return load(p);
    Vector v = vdupq_n_f32(0);
    if (n > 0) v = vld1q_lane_f32(p, v, 0);
    if (n > 1) v = vld1q_lane_f32(p + 1, v, 1);
    if (n > 2) v = vld1q_lane_f32(p + 2, v, 2);
    return v;
  }
  static TW_INLINE void store_first(float* p, int n, Vector v) {
    if (n >= kLanes) return store(p, v);
    if (n > 0) vst1q_lane_f32(p, v, 0);
    if (n > 1) vst1q_lane_f32(p + 1, v, 1);
    if (n > 2) vst1q_lane_f32(p + 2, v, 2);
  }
  static TW_INLINE Vector set1(float x) { return vdupq_n_f32(x); }
  static TW_INLINE Vector add(Vector a, Vector b) { return vaddq_f32(a, b); }
  static TW_INLINE Vector sub(Vector a, Vector b) { return vsubq_f32(a, b); }
  static TW_INLINE Vector mul(Vector a, Vector b) { return vmulq_f32(a, b); }
  static TW_INLINE Vector div(Vector a, Vector b) { return vdivq_f32(a, b); }
  static TW_INLINE Vector fma(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
  // Not vmaxq and vminq, which return NaN when either is.
  static TW_INLINE Vector max(Vector a, Vector b) { return select(vcgtq_f32(a, b), a, b); }
  static TW_INLINE Vector min(Vector a, Vector b) { return select(vcltq_f32(a, b), a, b); }
  static TW_INLINE Vector abs(Vector a) { return vabsq_f32(a); }
  static TW_INLINE Mask less(Vector a, Vector b) { return vcltq_f32(a, b); }
  // m ? a : b
  static TW_INLINE Vector select(Mask m, Vector a, Vector b) { return vbslq_f32(m, a, b); }
  // |magnitude| with the sign of `sign`; magnitude >= 0.
  static TW_INLINE Vector sign_of(Vector sign, Vector magnitude) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
  }
  static constexpr bool kAnyExp2 = false;
  static TW_INLINE Exp2Parts<Neon> exp2_parts(Vector x) { return exp2_parts_by_adding<Neon>(x); }
  static TW_INLINE Vector exp2_scaled(Vector p, Vector power) {
    return mul(p, vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(power), 23)));
  }

  static TW_INLINE Vector load_bf16(const uint16_t* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
  }
  static TW_INLINE Vector load_f16(const uint16_t* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
  }
  static TW_INLINE void store_bf16(uint16_t* p, Vector v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16));
  }
  static TW_INLINE void store_f16(uint16_t* p, Vector v) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
  }

  static TW_INLINE void transpose(Vector (&r)[4]) {
    Vector t[4];
    TW_UNROLL for (int i = 0; i < 2; ++i) {
      t[2 * i] = vzip1q_f32(r[i], r[i + 2]);
      t[2 * i + 1] = vzip2q_f32(r[i], r[i + 2]);
    }
    TW_UNROLL for (int i = 0; i < 2; ++i) {
      r[2 * i] = vzip1q_f32(t[i], t[i + 2]);
      r[2 * i + 1] = vzip2q_f32(t[i], t[i + 2]);
    }
  }

  // The first `count` times kColumns lanes, `strip` floats apart.
  template <int kColumns>
  static TW_INLINE void store_strips(float* p, int64_t, int, Vector v) {
    static_assert(kColumns == kLanes);
    store(p, v);
  }

  // The low halves of x times m; `high`: the high ones.
  static TW_INLINE Words multiply_wide(Words x, uint32_t m, Words& high) {
    const uint32x4_t first = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(x), m));
    const uint32x4_t last = vreinterpretq_u32_u64(vmull_n_u32(vget_high_u32(x), m));
    high = vuzp2q_u32(first, last);
    return vuzp1q_u32(first, last);
  }

  static TW_INLINE void pin(Vector& v) { asm("" : "+w"(v)); }
};

// For a few rows: one vector a panel.
struct NeonThin : Neon {
  static constexpr int kScoreVectors = 1;
};

}  // namespace tilewise::cpu
