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

// Rows [begin, past) of words; those from `end` on count as zeros, and so do columns from `dim` to
// the next 32.
struct WordRows {
  Rows from;
  int64_t begin;
  int64_t end;
  int64_t past;
  int dim;

  int64_t tiles() const { return (dim + 31) / 32; }
  // Columns d and more of a row: `columns` words.
  TW_INLINE void copy(int64_t row, int64_t d, int64_t columns, uint16_t* to) const {
    const auto* const words = static_cast<const uint16_t*>(from.data);
    copy_words(words + row * from.stride + d, row < end ? dim - d : 0, columns, to);
  }
};

// B of A times transposed rows: tiles [row / 16][d / 32] of [16 pairs of d][16 rows]; `to` is that
// of row 0.
template <class S>
void copy_transposed_tiles(const WordRows& rows, float* to) {
  const int64_t tiles = rows.tiles();
  to += rows.begin / 16 * tiles * kTileFloats;
  for (int64_t first = rows.begin; first < rows.past; first += 16) {
    for (int64_t d = 0; d < tiles * 32; d += 32, to += kTileFloats) {
      uint16_t words[16][32];
      for (int64_t r = 0; r < 16; ++r) rows.copy(first + r, d, 32, words[r]);
      transpose_words<S>(words, to);
    }
  }
}

// B of A times rows: tiles [row / 32][d / 16] of [16 pairs of rows][16 d].
template <class S>
void copy_tiles(const WordRows& rows, float* to) {
  const int64_t columns = rows.tiles() * 32;
  for (int64_t pair = rows.begin / 2; pair < rows.past / 2; ++pair) {
    float* const line = to + pair / 16 * columns / 16 * kTileFloats + pair % 16 * 16;
    for (int64_t d = 0; d < columns; d += 16) {
      uint16_t words[2][16];
      for (int64_t half = 0; half < 2; ++half) rows.copy(2 * pair + half, d, 16, words[half]);
      for (int lane = 0; lane < 16; lane += S::kLanes) {
        S::store_pairs(line + d / 16 * kTileFloats + lane, words[0] + lane, words[1] + lane);
      }
    }
  }
}

template <class S>
void copy_tile_keys(const Settings& settings, const KeysToCopy& copy) {
  // Whole blocks: products read them to their end.
  const int64_t past = (copy.end + kTileBlock - 1) / kTileBlock * kTileBlock;
  copy_transposed_tiles<S>({copy.k, copy.begin, copy.end, past, settings.head_dim}, copy.keys);
  copy_tiles<S>({copy.v, copy.begin, copy.end, past, settings.value_dim}, copy.values);
}

// Whether `count` pairs of words are all finite: x * 0 is then 0.
template <class S>
bool words_are_finite(const float* pairs, int64_t count) {
  constexpr int kSums = 4;
  const auto* const words = reinterpret_cast<const uint16_t*>(pairs);
  typename S::Vector sums[kSums] = {S::set1(0), S::set1(0), S::set1(0), S::set1(0)};
  for (int64_t i = 0; i < 2 * count; i += kSums * S::kLanes) {
    TW_UNROLL for (int s = 0; s < kSums; ++s) {
      sums[s] = S::fma(S::load_bf16(words + i + s * S::kLanes), S::set1(0), sums[s]);
    }
  }
  return S::total(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]))) == 0;
}

}  // namespace tilewise::cpu
