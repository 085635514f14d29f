// K and V as matrix tiles: B of tdpbf16ps holds two words for each column, pair below pair.
#pragma once

#include "cpu/call.h"
#include "cpu/simd.h"

namespace tilewise::cpu {

constexpr int64_t kTileFloats = 256;  // of a register
constexpr int64_t kTileBlock = 128;   // keys; copies end with whole blocks

TW_INLINE float float_of_bf16(uint16_t word) {
  const uint32_t bits = static_cast<uint32_t>(word) << 16;
  float value = 0;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// to [16 pairs][16 rows] = transposed pairs of words.
template <class S>
TW_INLINE void transpose_words(const uint16_t (&rows)[16][32], float* to) {
  constexpr int kL = S::kLanes;
  for (int row = 0; row < 16; row += kL) {
    for (int pair = 0; pair < 16; pair += kL) {
      typename S::Vector square[kL];
      for (int i = 0; i < kL; ++i) {
        float bits[kL];
        __builtin_memcpy(bits, rows[row + i] + 2 * pair, sizeof bits);
        square[i] = S::load(bits);
      }
      S::transpose(square);
      for (int i = 0; i < kL; ++i) S::store(to + (pair + i) * 16 + row, square[i]);
    }
  }
}

// Words of a row, 0 from `count` on.
TW_INLINE void copy_words(const uint16_t* from, int64_t count, int64_t columns, uint16_t* to) {
  if (count >= columns) {
    __builtin_memcpy(to, from, static_cast<unsigned long>(columns) * 2);
    return;
  }
  for (int64_t i = 0; i < columns; ++i) to[i] = i < count ? from[i] : uint16_t{0};
}

// K as tiles [key / 16][d / 32] of [16 pairs of d][16 keys]; zeros past the last key and column.
template <class S>
void copy_key_tiles(const Settings& settings, const KeysToCopy& copy, int64_t past) {
  const auto* const k = static_cast<const uint16_t*>(copy.k.data);
  const int64_t tiles = (settings.head_dim + 31) / 32;
  float* to = copy.keys + copy.begin / 16 * tiles * kTileFloats;
  for (int64_t first = copy.begin; first < past; first += 16) {
    for (int64_t d = 0; d < tiles * 32; d += 32, to += kTileFloats) {
      uint16_t rows[16][32];
      for (int64_t r = 0; r < 16; ++r) {
        const int64_t count = first + r < copy.end ? settings.head_dim - d : 0;
        copy_words(k + (first + r) * copy.k.stride + d, count, 32, rows[r]);
      }
      transpose_words<S>(rows, to);
    }
  }
}

// V as tiles [key / 32][d / 16] of [16 pairs of keys][16 d].
template <class S>
void copy_value_tiles(const Settings& settings, const KeysToCopy& copy, int64_t past) {
  const auto* const v = static_cast<const uint16_t*>(copy.v.data);
  const int64_t columns = (settings.value_dim + 31) / 32 * 32;
  for (int64_t pair = copy.begin / 2; pair < past / 2; ++pair) {
    float* const to = copy.values + pair / 16 * columns / 16 * kTileFloats + pair % 16 * 16;
    for (int64_t d = 0; d < columns; d += 16) {
      uint16_t rows[2][16];
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t key = 2 * pair + half;
        const int64_t count = key < copy.end ? settings.value_dim - d : 0;
        copy_words(v + key * copy.v.stride + d, count, 16, rows[half]);
      }
      for (int lane = 0; lane < 16; lane += S::kLanes) {
        S::store_pairs(to + d / 16 * kTileFloats + lane, rows[0] + lane, rows[1] + lane);
      }
    }
  }
}

template <class S>
void copy_tile_keys(const Settings& settings, const KeysToCopy& copy) {
  // Whole blocks: products read them to their end.
  const int64_t past = (copy.end + kTileBlock - 1) / kTileBlock * kTileBlock;
  copy_key_tiles<S>(settings, copy, past);
  copy_value_tiles<S>(settings, copy, past);
}

}  // namespace tilewise::cpu
