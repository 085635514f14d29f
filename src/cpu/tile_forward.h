// Forward of one query tile of bf16 on matrix tiles (AMX): 32 rows by a block of keys a step.
//
//   step t + 1   S = Q K^T                            tiles, 2 x 2 at a time
//   step t       m, P = exp2(c S - m) as bf16, sums   vectors, four rows at a time
//   step t - 1   O += P V                             tiles, 2 x 2 at a time
//
// The three stages of different steps are dealt out between each other: tiles and vectors work side
// by side, as far as the processor looks ahead. Scores and weights are double-buffered. The sums
// are of weights before their rounding to bf16. docs/cpu-kernels.md
#pragma once

#include "cpu/forward.h"
#include "cpu/tile_words.h"

namespace tilewise::cpu {

constexpr int kTileRows = 32;
constexpr int64_t kTileFloats = 256;  // of a register

struct TileStep {
  int64_t begin = -1;  // the block's first key; -1: no step
  int panel = 0;
  int parity = 0;  // which of the two buffers
  bool full = false;
  bool by_pairs = false;  // values must be added pair by pair: some are not finite
};

// Everything of a tile that its stages share.
template <class S>
struct TileCall {
  const Settings& settings;
  const ForwardTile& tile;
  const ForwardScratch& scratch;
  int64_t head_tiles;   // of 32 columns
  int64_t value_pairs;  // of 32 columns

  float* scores(const TileStep& step) const {
    return scratch.scores + step.parity * kTileRows * settings.block_keys;
  }
  uint16_t* weights(const TileStep& step) const {
    return scratch.weights + step.parity * kTileRows * settings.block_keys;
  }
  float* outs(int panel) const {
    return scratch.outs + int64_t{panel} * kTileRows * value_pairs * 32;
  }
};

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
  const int64_t block = settings.block_keys;
  const int64_t past = (copy.end + block - 1) / block * block;
  copy_key_tiles<S>(settings, copy, past);
  copy_value_tiles<S>(settings, copy, past);
}

// S of 32 rows and the 32 keys of one slot.
template <class S, class T>
TW_INLINE void score_slot(const TileCall<S>& call, const TileStep& step, int64_t slot) {
  const int64_t q_stride = call.head_tiles * 64;
  const char* q = reinterpret_cast<const char*>(call.scratch.queries) +
                  int64_t{step.panel} * kTileRows * q_stride;
  const float* k =
      call.tile.key_copy + (step.begin / 16 + 2 * slot) * call.head_tiles * kTileFloats;
  const int64_t next_keys = call.head_tiles * kTileFloats;
  T::template zero<0>();
  T::template zero<1>();
  T::template zero<2>();
  T::template zero<3>();
  for (int64_t d = 0; d < call.head_tiles; ++d) {
    T::template load<4>(q, q_stride);
    T::template load<6>(k, 64);
    T::template dot<0, 4, 6>();
    T::template load<5>(q + 16 * q_stride, q_stride);
    T::template dot<2, 5, 6>();
    T::template load<7>(k + next_keys, 64);
    T::template dot<1, 4, 7>();
    T::template dot<3, 5, 7>();
    q += 64;
    k += kTileFloats;
  }
  const int64_t stride = call.settings.block_keys * 4;
  float* const to = call.scores(step) + 32 * slot;
  T::template store<0>(to, stride);
  T::template store<1>(to + 16, stride);
  T::template store<2>(to + 4 * stride, stride);
  T::template store<3>(to + 4 * stride + 16, stride);
}

// O of 32 rows and the 32 columns of one slot += P V.
template <class S, class T>
TW_INLINE void output_slot(const TileCall<S>& call, const TileStep& step, int64_t slot) {
  const int64_t p_stride = call.settings.block_keys * 2;
  const int64_t o_stride = call.value_pairs * 128;
  float* const out = call.outs(step.panel) + 32 * slot;
  float* const lower = out + 4 * o_stride;  // 16 rows further
  const uint16_t* p = call.weights(step);
  const float* v =
      call.tile.value_copy + (step.begin / 32 * call.value_pairs + slot) * 2 * kTileFloats;
  T::template load<0>(out, o_stride);
  T::template load<1>(out + 16, o_stride);
  T::template load<2>(lower, o_stride);
  T::template load<3>(lower + 16, o_stride);
  for (int64_t keys = 0; keys < call.settings.block_keys; keys += 32) {
    T::template load<4>(p, p_stride);
    T::template load<6>(v, 64);
    T::template dot<0, 4, 6>();
    T::template load<5>(p + 8 * p_stride, p_stride);
    T::template dot<2, 5, 6>();
    T::template load<7>(v + kTileFloats, 64);
    T::template dot<1, 4, 7>();
    T::template dot<3, 5, 7>();
    p += 32;
    v += call.value_pairs * 2 * kTileFloats;
  }
  T::template store<0>(out, o_stride);
  T::template store<1>(out + 16, o_stride);
  T::template store<2>(lower, o_stride);
  T::template store<3>(lower + 16, o_stride);
}

// The same over visible pairs only: 0 * NaN.
template <class S>
void add_visible_pairs(const TileCall<S>& call, const TileStep& step) {
  const auto* const v = static_cast<const uint16_t*>(call.tile.v.data);
  const int64_t block = call.settings.block_keys;
  for (int r = 0; r < kTileRows; ++r) {
    const int lane = step.panel * kTileRows + r;
    float* const out = call.outs(step.panel) + r * call.value_pairs * 32;
    for (int64_t j = 0; j < block; ++j) {
      const int64_t key = step.begin + j;
      if (key < call.tile.key_begin[lane] || key >= call.tile.key_end[lane]) continue;
      const float weight = float_of_bf16(call.weights(step)[r * block + j]);
      for (int d = 0; d < call.settings.value_dim; ++d) {
        out[d] += weight * float_of_bf16(v[key * call.tile.v.stride + d]);
      }
    }
  }
}

// Masks, maximum, weights and sums of one row; kVectors of a block's keys. factors = alpha.
template <class S, int kVectors>
TW_INLINE void weigh_row(const TileCall<S>& call, const TileStep& step, int row, float scale) {
  using Vector = typename S::Vector;
  constexpr int kKeys = kVectors * S::kLanes;
  const int lane = step.panel * kTileRows + row;
  const float* const scores = call.scores(step) + row * kKeys;
  Vector x[kVectors];
  TW_UNROLL for (int v = 0; v < kVectors; ++v) x[v] = S::load(scores + v * S::kLanes);
  if (!step.full) {
    const auto relative = [&](int64_t key) {
      const int64_t at = key - step.begin;
      return S::set1(static_cast<float>(at < 0 ? 0 : at > kKeys ? kKeys : at));
    };
    const Vector first = relative(call.tile.key_begin[lane]);
    const Vector past = relative(call.tile.key_end[lane]);
    Vector key = S::lane_numbers();
    TW_UNROLL for (int v = 0; v < kVectors; ++v) {
      const Vector none = S::set1(-kInfinity);
      x[v] = S::select(S::less(key, first), none, x[v]);
      x[v] = S::select(S::less(key, past), x[v], none);
      key = S::add(key, S::set1(S::kLanes));
    }
  }
  Vector top[2] = {S::set1(-kInfinity), S::set1(-kInfinity)};
  TW_UNROLL for (int v = 0; v < kVectors; ++v) top[v % 2] = S::max(x[v], top[v % 2]);
  const float before = call.scratch.maxima[lane];
  const float highest = scale * S::highest(S::max(top[0], top[1]));
  const float maximum = highest > before ? highest : before;
  // -inf, the maximum of nothing, would make NaN of -inf - -inf.
  const float shift = maximum > kLowestFloat ? maximum : kLowestFloat;
  // Rounded as the maximum was: fused, a huge score would stand far above its own maximum.
  TW_UNROLL for (int v = 0; v < kVectors; ++v) {
    x[v] = S::sub(S::mul(x[v], S::set1(scale)), S::set1(shift));
  }
  Vector sum = S::set1(0);
  TW_UNROLL for (int v = 0; v < kVectors; v += 4) {
    Vector four[4];
    TW_UNROLL for (int i = 0; i < 4; ++i) four[i] = x[v + i];
    exp2_below_128<S, 4>(four);
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      S::store_bf16(call.weights(step) + row * kKeys + (v + i) * S::kLanes, four[i]);
    }
    sum = S::add(sum, S::add(S::add(four[0], four[1]), S::add(four[2], four[3])));
  }
  float* const sums = call.scratch.sums + int64_t{lane} * S::kLanes;
  if (maximum == before) {
    S::store(sums, S::add(S::load(sums), sum));
    call.scratch.factors[row] = 1;
    return;
  }
  const Vector alpha = exp2_below_128<S>(S::set1(before - shift));
  S::store(sums, S::fma(S::load(sums), alpha, sum));
  call.scratch.maxima[lane] = maximum;
  call.scratch.factors[row] = S::first(alpha);
}

// O of the step's rows whose maximum rose.
template <class S>
TW_INLINE void rescale_outs(const TileCall<S>& call, const TileStep& step) {
  for (int row = 0; row < kTileRows; ++row) {
    if (call.scratch.factors[row] == 1) continue;
    const auto alpha = S::set1(call.scratch.factors[row]);
    float* const out = call.outs(step.panel) + row * call.value_pairs * 32;
    for (int64_t i = 0; i < call.value_pairs * 32; i += S::kLanes) {
      S::store(out + i, S::mul(S::load(out + i), alpha));
    }
  }
}

// Whether a block of the copied values is finite, keys past the end included.
template <class S>
bool block_is_finite(const TileCall<S>& call, int64_t begin) {
  constexpr int kSums = 4;
  const float* const floats = call.tile.value_copy + begin * call.value_pairs * 16;
  const auto* const words = reinterpret_cast<const uint16_t*>(floats);
  typename S::Vector sums[kSums] = {S::set1(0), S::set1(0), S::set1(0), S::set1(0)};
  const int64_t count = call.settings.block_keys * call.value_pairs * 32;
  for (int64_t i = 0; i < count; i += kSums * S::kLanes) {
    TW_UNROLL for (int s = 0; s < kSums; ++s) {
      sums[s] = S::fma(S::load_bf16(words + i + s * S::kLanes), S::set1(0), sums[s]);
    }
  }
  float lanes[S::kLanes];
  S::store(lanes, S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])));
  for (int i = 0; i < S::kLanes; ++i) {
    if (lanes[i] != 0) return false;
  }
  return true;
}

// The step after one: the next panel that sees the block, or the next block.
template <class S>
TileStep step_after(const TileCall<S>& call, TileStep step, int panels, int64_t end) {
  const int64_t block = call.settings.block_keys;
  step.parity ^= 1;
  for (;;) {
    if (++step.panel == panels) {
      step.panel = 0;
      step.begin += block;
      if (step.begin >= end) {
        step.begin = -1;
        return step;
      }
    }
    const int64_t* const begins = call.tile.key_begin + step.panel * kTileRows;
    const int64_t* const ends = call.tile.key_end + step.panel * kTileRows;
    constexpr int kLast = kTileRows - 1;
    if (ends[kLast] <= step.begin || begins[0] >= step.begin + block) continue;
    step.full = begins[kLast] <= step.begin && ends[0] >= step.begin + block;
    step.by_pairs = !step.full && !block_is_finite(call, step.begin);
    return step;
  }
}

// Weights of `now`, and between its rows the products of the steps around it.
template <class S, class T, int kVectors>
void run_step(const TileCall<S>& call, const TileStep& before, const TileStep& now,
              const TileStep& next, float scale) {
  constexpr int kChunks = 8;
  const int64_t outputs = before.begin < 0 || before.by_pairs ? 0 : call.value_pairs;
  const int64_t slots = outputs + (next.begin < 0 ? 0 : call.settings.block_keys / 32);
  int64_t done = 0;
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    for (; done < slots * (chunk + 1) / kChunks; ++done) {
      if (done < outputs) {
        output_slot<S, T>(call, before, done);
      } else {
        score_slot<S, T>(call, next, done - outputs);
      }
    }
    for (int row = 0; row < kTileRows / kChunks; ++row) {
      weigh_row<S, kVectors>(call, now, chunk * kTileRows / kChunks + row, scale);
    }
  }
  if (before.by_pairs) add_visible_pairs(call, before);
  rescale_outs(call, now);
}

template <class S>
void start_tile_rows(const TileCall<S>& call) {
  const int64_t rows = int64_t{call.settings.panels} * kTileRows;
  const int64_t columns = call.head_tiles * 32;
  const auto* const q = static_cast<const uint16_t*>(call.tile.q.data);
  auto* const queries = reinterpret_cast<uint16_t*>(call.scratch.queries);
  for (int64_t r = 0; r < rows; ++r) {
    copy_words(q + r * call.tile.q.stride, r < call.tile.rows ? call.settings.head_dim : 0, columns,
               queries + r * columns);
    call.scratch.maxima[r] = -kInfinity;
    S::store(call.scratch.sums + r * S::kLanes, S::set1(0));
  }
  for (int64_t i = 0; i < rows * call.value_pairs * 32; i += S::kLanes) {
    S::store(call.scratch.outs + i, S::set1(0));
  }
}

template <class S>
void finish_tile_rows(const TileCall<S>& call) {
  const int dim = call.settings.value_dim;
  for (int row = 0; row < call.tile.rows; ++row) {
    float sum = 0;
    for (int i = 0; i < S::kLanes; ++i) sum += call.scratch.sums[row * S::kLanes + i];
    float lse = 0;
    const float factor =
        finish_row(call.settings, call.tile.sink, call.scratch.maxima[row], sum, &lse);
    if (call.tile.lse != nullptr) call.tile.lse[row] = lse;
    const float* const out = call.scratch.outs + row * call.value_pairs * 32;
    for (int d = 0; d < dim; d += S::kLanes) {
      const int n = dim - d < S::kLanes ? dim - d : S::kLanes;
      store_elements<S>(Element::bf16, call.tile.out.data, row * call.tile.out.stride + d, n,
                        S::mul(S::load(out + d), S::set1(factor)));
    }
  }
}

template <class S, class T>
void forward_on_tiles(const Settings& settings, const ForwardTile& tile,
                      const ForwardScratch& scratch) {
  const TileCall<S> call = {settings, tile, scratch, (settings.head_dim + 31) / 32,
                            (settings.value_dim + 31) / 32};
  start_tile_rows(call);
  const int panels = (tile.rows + kTileRows - 1) / kTileRows;
  const int64_t block = settings.block_keys;
  const int64_t end = tile.key_end[panels * kTileRows - 1];
  const float scale = query_factor(settings);
  TileStep before;
  TileStep now;
  now.panel = panels - 1;
  now.begin = tile.key_begin[0] / block * block - block;
  now = step_after(call, now, panels, end);
  T::start();
  for (int64_t slot = 0; now.begin >= 0 && slot < block / 32; ++slot) {
    score_slot<S, T>(call, now, slot);
  }
  while (now.begin >= 0) {
    const TileStep next = step_after(call, now, panels, end);
    if (block == 128) {
      run_step<S, T, 128 / S::kLanes>(call, before, now, next, scale);
    } else {
      run_step<S, T, 64 / S::kLanes>(call, before, now, next, scale);
    }
    before = now;
    now = next;
  }
  for (int64_t slot = 0; before.begin >= 0 && !before.by_pairs && slot < call.value_pairs; ++slot) {
    output_slot<S, T>(call, before, slot);
  }
  if (before.by_pairs) add_visible_pairs(call, before);
  T::stop();
  finish_tile_rows(call);
}

}  // namespace tilewise::cpu
