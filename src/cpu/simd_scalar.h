// The portable vector: 4 floats by compiler vector extensions, so it runs on any machine and needs
// no intrinsics; 16-bit elements are converted by their bits. See simd.h for the operations.
#pragma once

#include "cpu/simd.h"

namespace tilewise::cpu {

struct Scalar {
  static constexpr int kLanes = 4;
  static constexpr int kScoreRows = 4;
  static constexpr int kScoreVectors = 2;
  static constexpr int kGradientRows = 4;
  static constexpr int kGradientVectors = 2;
  using Vector = float __attribute__((vector_size(16)));
  using Mask = int32_t __attribute__((vector_size(16)));
  using Words = uint32_t __attribute__((vector_size(16)));

  static TW_INLINE Vector load(const float* p) {
    Vector v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static TW_INLINE void store(float* p, Vector v) { __builtin_memcpy(p, &v, sizeof v); }
  static TW_INLINE Vector load_first(const float* p, int n) {
    Vector v = {0, 0, 0, 0};
    for (int i = 0; i < n && i < kLanes; ++i) v[i] = p[i];
    return v;
  }
  static TW_INLINE void store_first(float* p, int n, Vector v) {
    for (int i = 0; i < n && i < kLanes; ++i) p[i] = v[i];
  }
  static TW_INLINE Vector set1(float x) { return Vector{x, x, x, x}; }
  static TW_INLINE Vector add(Vector a, Vector b) { return a + b; }
  static TW_INLINE Vector sub(Vector a, Vector b) { return a - b; }
  static TW_INLINE Vector mul(Vector a, Vector b) { return a * b; }
  static TW_INLINE Vector div(Vector a, Vector b) { return a / b; }
  static TW_INLINE Vector fma(Vector a, Vector b, Vector c) { return a * b + c; }
  static TW_INLINE Vector max(Vector a, Vector b) { return select(a > b, a, b); }
  static TW_INLINE Vector min(Vector a, Vector b) { return select(a < b, a, b); }
  static TW_INLINE Vector abs(Vector a) { return as_floats(as_words(a) & 0x7fffffffu); }
  static TW_INLINE Mask less(Vector a, Vector b) { return a < b; }
  // m ? a : b
  static TW_INLINE Vector select(Mask m, Vector a, Vector b) {
    const Words chosen = reinterpret_cast<Words>(m);
    return as_floats((as_words(a) & chosen) | (as_words(b) & ~chosen));
  }
  // |magnitude| with the sign of `sign`; magnitude >= 0.
  static TW_INLINE Vector sign_of(Vector sign, Vector magnitude) {
    return as_floats((as_words(sign) & 0x80000000u) | as_words(magnitude));
  }
  static constexpr bool kAnyExp2 = false;
  static TW_INLINE Exp2Parts<Scalar> exp2_parts(Vector x) {
    return exp2_parts_by_adding<Scalar>(x);
  }
  static TW_INLINE Vector exp2_scaled(Vector p, Vector power) {
    return p * as_floats(as_words(power) << 23);
  }

  static TW_INLINE Vector load_bf16(const uint16_t* p) {
    return as_floats(Words{p[0], p[1], p[2], p[3]} << 16);
  }
  static TW_INLINE Vector load_f16(const uint16_t* p) {
    const Words bits = {p[0], p[1], p[2], p[3]};
    const Words magnitude = bits & 0x7fffu;
    // The exponent field moves by 127 - 15; the multiplication does it, denormals included.
    const Vector finite = as_floats(magnitude << 13) * 0x1p112f;
    const Vector special = as_floats((magnitude << 13) | 0x7f800000u);
    const Mask is_special = reinterpret_cast<Mask>(magnitude >= 0x7c00u);
    return sign_of(as_floats(bits << 16), select(is_special, special, finite));
  }
  static TW_INLINE void store_bf16(uint16_t* p, Vector v) {
    const Words bits = as_words(v);
    const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Words quiet = (bits >> 16) | 0x40u;
    const Words nan = reinterpret_cast<Words>(v != v);
    store_words(p, (quiet & nan) | (rounded & ~nan));
  }
  static TW_INLINE void store_f16(uint16_t* p, Vector v) {
    const Words bits = as_words(v);
    const Words magnitude = bits & 0x7fffffffu;
    const Words normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    // Adding 0.5 leaves the rounded 2^-24 units in the low mantissa bits.
    const Words tiny = as_words(as_floats(magnitude) + 0.5f) - 0x3f000000u;
    const Words is_tiny = reinterpret_cast<Words>(magnitude < 0x38800000u);
    const Words is_large = reinterpret_cast<Words>(magnitude >= 0x477ff000u);  // 65520 and up
    const Words nan = reinterpret_cast<Words>(v != v);
    Words result = (tiny & is_tiny) | (normal & ~is_tiny);
    result = (result & ~is_large) | (is_large & 0x7c00u) | (nan & 0x7e00u);
    store_words(p, result | ((bits >> 16) & 0x8000u));
  }

  static TW_INLINE void transpose(Vector (&r)[4]) {
    const Vector t[4] = {r[0], r[1], r[2], r[3]};
    for (int i = 0; i < 4; ++i) r[i] = Vector{t[0][i], t[1][i], t[2][i], t[3][i]};
  }

  // The first `count` times kColumns lanes, `strip` floats apart.
  template <int kColumns>
  static TW_INLINE void store_strips(float* p, int64_t, int, Vector v) {
    static_assert(kColumns == kLanes);
    store(p, v);
  }

  // The low halves of x times m; `high`: the high ones.
  static TW_INLINE Words multiply_wide(Words x, uint32_t m, Words& high) {
    for (int i = 0; i < kLanes; ++i) high[i] = static_cast<uint32_t>(uint64_t{x[i]} * m >> 32);
    return x * m;
  }

  static TW_INLINE void pin(Vector&) {}

 private:
  static TW_INLINE Words as_words(Vector v) { return reinterpret_cast<Words>(v); }
  static TW_INLINE Vector as_floats(Words v) { return reinterpret_cast<Vector>(v); }
  static TW_INLINE void store_words(uint16_t* p, Words v) {
    for (int i = 0; i < 4; ++i) p[i] = static_cast<uint16_t>(v[i]);
  }
};

// For a few rows: one vector a panel.
struct ScalarThin : Scalar {
  static constexpr int kScoreVectors = 1;
};

}  // namespace tilewise::cpu
