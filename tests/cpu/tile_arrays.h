// Plain arrays in place of AMX registers and of vectors, for tests of the kernels on matrix tiles.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/simd_scalar.h"
#include "cpu/tile_copies.h"

namespace tilewise::cpu {

struct ScalarTiles : Scalar {
  // As the hardware does, with one rounding.
  static Vector fma(Vector a, Vector b, Vector c) {
    for (int i = 0; i < kLanes; ++i) c[i] = std::fma(a[i], b[i], c[i]);
    return c;
  }
  static Vector lane_numbers() { return Vector{0, 1, 2, 3}; }
  static float highest(Vector v) { return std::max(std::max(v[0], v[1]), std::max(v[2], v[3])); }
  static float total(Vector v) { return v[0] + v[1] + (v[2] + v[3]); }
  static float first(Vector v) { return v[0]; }
  static Vector fms(Vector a, Vector b, Vector c) { return fma(a, b, -c); }
  static Vector above_floor(Vector x) {
    for (int i = 0; i < kLanes; ++i) x[i] = std::isinf(x[i]) ? 0 : x[i] - std::floor(x[i]);
    return x;
  }
  static Vector scaled_by_floor(Vector p, Vector x) {
    for (int i = 0; i < kLanes; ++i) p[i] *= std::exp2(std::floor(x[i]));
    return p;
  }

  struct Packed {
    uint16_t words[2 * kLanes];
  };
  static Packed pack(Vector a, Vector b) {
    Packed packed;
    store_bf16(packed.words, a);
    store_bf16(packed.words + kLanes, b);
    return packed;
  }
  static Packed interleave(const Packed& packed) {
    Packed pairs;
    for (int i = 0; i < kLanes; ++i) {
      pairs.words[2 * i] = packed.words[i];
      pairs.words[2 * i + 1] = packed.words[kLanes + i];
    }
    return pairs;
  }
  static void store_packed(uint16_t* p, const Packed& packed) {
    std::memcpy(p, packed.words, sizeof packed.words);
  }
  static Packed none_packed() { return {}; }
  static Packed max_packed(Packed a, const Packed& b) {
    for (int i = 0; i < 2 * kLanes; ++i) a.words[i] = std::max(a.words[i], b.words[i]);
    return a;
  }
  static bool any_large(const Packed& packed) {
    return *std::max_element(packed.words, packed.words + 2 * kLanes) > 0x4700;
  }
  static void store_pairs(float* p, const uint16_t* low, const uint16_t* high) {
    for (int i = 0; i < kLanes; ++i) {
      const uint16_t pair[2] = {low[i], high[i]};
      std::memcpy(p + i, pair, sizeof pair);
    }
  }
};

inline float as_float(uint16_t word) { return float_of_bf16(word); }

inline uint16_t as_bf16(float value) {
  uint16_t words[Scalar::kLanes];
  Scalar::store_bf16(words, Scalar::set1(value));
  return words[0];
}

// What the instructions of AmxWords do.
struct ArrayWords {
  static inline uint16_t tiles[8][16][32];
  static inline bool started = false;

  static void start() { started = true; }
  static void stop() { started = false; }
  template <int kTile>
  static void zero() {
    std::memset(tiles[kTile], 0, sizeof tiles[kTile]);
  }
  template <int kTile>
  static void load(const void* rows, int64_t stride) {
    EXPECT_TRUE(started);
    for (int64_t r = 0; r < 16; ++r) {
      std::memcpy(tiles[kTile][r], static_cast<const char*>(rows) + r * stride, 64);
    }
  }
  template <int kTile>
  static void stream(const void* rows, int64_t stride) {
    load<kTile>(rows, stride);
  }
  template <int kTile>
  static void store(void* rows, int64_t stride) {
    EXPECT_TRUE(started);
    for (int64_t r = 0; r < 16; ++r) {
      std::memcpy(static_cast<char*>(rows) + r * stride, tiles[kTile][r], 64);
    }
  }
  template <int kC, int kA, int kB>
  static void dot() {
    for (int r = 0; r < 16; ++r) {
      float sums[16];
      std::memcpy(sums, tiles[kC][r], sizeof sums);
      for (int c = 0; c < 16; ++c) {
        for (int pair = 0; pair < 16; ++pair) {
          for (int half = 0; half < 2; ++half) {
            sums[c] +=
                as_float(tiles[kA][r][2 * pair + half]) * as_float(tiles[kB][pair][2 * c + half]);
          }
        }
      }
      std::memcpy(tiles[kC][r], sums, sizeof sums);
    }
  }
};

}  // namespace tilewise::cpu
