// Backward of one query tile of bf16 on matrix tiles (AMX): 64 query rows by 32 keys a strip.
//
//   1. S^T = K Q^T, dP^T = V dO^T            [32 keys, 64 rows] floats
//   2. P = exp2(c S - lse), dS = P (dP - delta), both rounded to bf16, rows in lanes
//   3. dV += P^T dO, dK += dS^T Q            [32 keys, dim], sums over the range in memory
//   4. dQ^T += K^T dS of four strips         [dim, 64 rows]
//
// P^T and dS^T lie as rows of keys, which is A of 3; dS^T lies once more as pairs of keys, which is
// B of 4. Q, dO, K and V are copied into the layouts of both their products, K and V once a range.
// docs/cpu-kernels.md
#pragma once

#include "cpu/backward.h"
#include "cpu/tile_copies.h"
#include "cpu/tile_weights.h"

namespace tilewise::cpu {

// K of a range as rows of words and, strip by strip, as columns [head_dim, 32 keys]; V as rows. All
// from the start of the range; zeros to whole strips and tiles.
template <class S>
void copy_tile_range(const Settings& settings, const KeysToCopy& copy) {
  const int64_t past = copy.begin + (copy.end - copy.begin + 31) / 32 * 32;
  const WordRows k = {copy.k, copy.begin, copy.end, past, settings.head_dim};
  const WordRows v = {copy.v, copy.begin, copy.end, past, settings.value_dim};
  const int64_t head = k.tiles() * 32;
  const int64_t value = v.tiles() * 32;
  auto* const keys = reinterpret_cast<uint16_t*>(copy.keys);
  auto* const columns = keys + (past - copy.begin) * head;
  auto* const values = reinterpret_cast<uint16_t*>(copy.values);
  for (int64_t row = copy.begin; row < past; ++row) {
    k.copy(row, 0, head, keys + (row - copy.begin) * head);
    v.copy(row, 0, value, values + (row - copy.begin) * value);
  }
  for (int64_t strip = 0; strip < past - copy.begin; strip += 32) {
    for (int64_t r = 0; r < 32; ++r) {
      const uint16_t* const row = keys + (strip + r) * head;
      for (int64_t d = 0; d < head; ++d) columns[(strip * head) + d * 32 + r] = row[d];
    }
  }
}

template <class S, class T>
class BackwardOnTiles {
 public:
  static constexpr int kRows = 64;  // of a query tile
  static constexpr int kKeys = 32;  // of a strip
  static constexpr int kStrips = static_cast<int>(kTileBlock) / kKeys;
  static constexpr int kWords = (2 + kStrips) * kKeys * kRows;  // of scratch

  BackwardOnTiles(const Settings& settings, const BackwardTile& tile,
                  const BackwardScratch& scratch)
      : settings_(settings),
        tile_(tile),
        scratch_(scratch),
        head_tiles_((settings.head_dim + 31) / 32),
        value_tiles_((settings.value_dim + 31) / 32),
        range_rows_((tile.range_end - tile.range_begin + kKeys - 1) / kKeys * kKeys) {}

  void run() {
    start();
    const int64_t seen = tile_.key_end[kRows - 1];
    const int64_t first = tile_.key_begin[0] - tile_.range_begin;
    const int64_t end = (seen < tile_.range_end ? seen : tile_.range_end) - tile_.range_begin;
    T::start();
    for (int64_t block = (first > 0 ? first : 0) / kKeys * kKeys; block < end; block += kBlock) {
      unsigned finite = 0;  // bit s: strip s of the block goes through tiles
      for (int s = 0; s < kStrips && block + s * kKeys < end; ++s) {
        if (add_strip(block + s * kKeys, s)) finite |= 1u << s;
      }
      if (tile_.d_q.data != nullptr) add_query_gradients(block, finite);
    }
    T::stop();
  }

 private:
  static constexpr int kBlock = static_cast<int>(kTileBlock);

  // Places in scratch: floats of S^T and dP^T of a strip, then words of P^T, dS^T, and the pairs of
  // dS^T of a block.
  float* scores() const { return scratch_.weights; }
  float* d_weights() const { return scratch_.d_scores; }
  uint16_t* weights() const { return scratch_.words; }
  uint16_t* d_scores() const { return weights() + kKeys * kRows; }
  uint16_t* pairs(int strip) const { return weights() + (2 + strip) * kKeys * kRows; }

  // The layouts of Q and dO, statistics, and zeros in dQ.
  void start() {
    const WordRows q = {tile_.q, 0, tile_.rows, kRows, settings_.head_dim};
    const WordRows d_out = {tile_.d_out, 0, tile_.rows, kRows, settings_.value_dim};
    copy_transposed_tiles<S>(q, scratch_.queries);
    copy_transposed_tiles<S>(d_out, scratch_.d_outs);
    copy_tiles<S>(q, scratch_.query_rows);
    copy_tiles<S>(d_out, scratch_.d_out_rows);
    for (int64_t row = 0; row < kRows; ++row) {
      const bool real = row < tile_.rows;
      scratch_.lse_log2[row] = real ? static_cast<float>(tile_.lse[row] * kLog2e) : 0.0f;
      scratch_.delta[row] = real ? tile_.delta[row] : 0.0f;
      if (tile_.idle[row] != 0) all_work_ = false;
    }
    for (int64_t i = 0; i < head_tiles_ * 32 * kRows; i += S::kLanes) {
      S::store(scratch_.d_queries + i, S::set1(0));
    }
    rows_finite_ = words_are_finite<S>(scratch_.query_rows, kRows * head_tiles_ * 16) &&
                   words_are_finite<S>(scratch_.d_out_rows, kRows * value_tiles_ * 16);
  }

  // Steps 1 to 3; false: pair by pair, 4 included, because something invisible is not finite.
  bool add_strip(int64_t key, int strip) {
    const bool wants_scores = tile_.d_k != nullptr || tile_.d_q.data != nullptr;
    multiply_keys(keys(), head_tiles_, key, scratch_.queries, scores());
    if (wants_scores) {
      multiply_keys(values(), value_tiles_, key, scratch_.d_outs, d_weights());
    }
    const int64_t begin = tile_.range_begin + key;
    const int64_t past = begin + kKeys < tile_.range_end ? begin + kKeys : tile_.range_end;
    const bool full = all_work_ && past == begin + kKeys && tile_.key_begin[kRows - 1] <= begin &&
                      tile_.key_end[0] >= past;
    if (full) {
      weigh<false>(begin, past, pairs(strip));
    } else {
      weigh<true>(begin, past, pairs(strip));
      if (!(rows_finite_ && strip_is_finite(key))) {
        add_visible_pairs_of(key, past - begin);
        return false;
      }
    }
    if (tile_.d_v != nullptr) {
      add_key_gradients(weights(), scratch_.d_out_rows, value_tiles_,
                        tile_.d_v + key * value_tiles_ * 32);
    }
    if (tile_.d_k != nullptr) {
      add_key_gradients(d_scores(), scratch_.query_rows, head_tiles_,
                        tile_.d_k + key * head_tiles_ * 32);
    }
    return true;
  }

  const uint16_t* keys() const { return reinterpret_cast<const uint16_t*>(tile_.keys); }
  const uint16_t* values() const { return reinterpret_cast<const uint16_t*>(tile_.values); }
  const uint16_t* key_columns() const { return keys() + range_rows_ * head_tiles_ * 32; }

  // Two rows of tiles of A, two columns of tiles of B.
  struct Factors {
    const void* upper;
    const void* lower;
    int64_t a_stride;
    const void* left;
    const void* right;
    int64_t b_stride;
  };
  static TW_INLINE void multiply(const Factors& of) {
    T::template load<4>(of.upper, of.a_stride);
    T::template stream<6>(of.left, of.b_stride);
    T::template dot<0, 4, 6>();
    T::template load<5>(of.lower, of.a_stride);
    T::template dot<2, 5, 6>();
    T::template stream<7>(of.right, of.b_stride);
    T::template dot<1, 4, 7>();
    T::template dot<3, 5, 7>();
  }
  static TW_INLINE void zero_sums() {
    T::template zero<0>();
    T::template zero<1>();
    T::template zero<2>();
    T::template zero<3>();
  }
  // [32, 32] floats, rows `row` floats apart.
  static TW_INLINE void load_sums(const float* sums, int64_t row) {
    T::template load<0>(sums, row * 4);
    T::template load<1>(sums + 16, row * 4);
    T::template load<2>(sums + 16 * row, row * 4);
    T::template load<3>(sums + 16 * row + 16, row * 4);
  }
  static TW_INLINE void store_sums(float* sums, int64_t row) {
    T::template store<0>(sums, row * 4);
    T::template store<2>(sums + 16 * row, row * 4);
    T::template store<1>(sums + 16, row * 4);
    T::template store<3>(sums + 16 * row + 16, row * 4);
  }

  // to [32 keys, 64 rows] = rows of a range times columns of queries.
  void multiply_keys(const uint16_t* rows, int64_t tiles, int64_t key, const float* columns,
                     float* to) const {
    const uint16_t* const a = rows + key * tiles * 32;
    for (int64_t half = 0; half < kRows / 32; ++half) {
      const float* const b = columns + half * 2 * tiles * kTileFloats;
      zero_sums();
      for (int64_t t = 0; t < tiles; ++t) {
        multiply({a + t * 32, a + (16 * tiles + t) * 32, tiles * 64, b + t * kTileFloats,
                  b + (tiles + t) * kTileFloats, 64});
      }
      store_sums(to + half * 32, kRows);
    }
  }

  // sums [32 keys, tiles * 32] += a [32 keys, 64 rows] times rows.
  void add_key_gradients(const uint16_t* a, const float* rows, int64_t tiles, float* sums) const {
    for (int64_t slot = 0; slot < tiles; ++slot) {
      load_sums(sums + slot * 32, tiles * 32);
      for (int64_t turn = 0; turn < kRows / 32; ++turn) {
        const float* const b = rows + (turn * tiles + slot) * 2 * kTileFloats;
        multiply({a + turn * 32, a + 16 * kRows + turn * 32, kRows * 2, b, b + kTileFloats, 64});
      }
      store_sums(sums + slot * 32, tiles * 32);
    }
  }

  // dQ^T [head_dim, 64 rows] += columns of K times pairs of dS^T, of the finite strips of a block.
  void add_query_gradients(int64_t block, unsigned finite) const {
    for (int64_t d = 0; d < head_tiles_; ++d) {
      for (int64_t half = 0; half < kRows / 32; ++half) {
        float* const sums = scratch_.d_queries + d * 32 * kRows + half * 32;
        load_sums(sums, kRows);
        for (int s = 0; s < kStrips; ++s) {
          if ((finite >> s & 1) == 0) continue;
          const uint16_t* const a =
              key_columns() + ((block + s * kKeys) * head_tiles_ + d * 32) * 32;
          const uint16_t* const b = pairs(s) + half * 64;
          multiply({a, a + 16 * 32, 64, b, b + 32, kRows * 4});
        }
        store_sums(sums, kRows);
      }
    }
  }

  // Step 2 of keys [begin, past) of the sequence: two vectors of rows, two keys at a time.
  template <bool kMasked>
  void weigh(int64_t begin, int64_t past, uint16_t* to_pairs) const {
    constexpr int kL = S::kLanes;
    const auto scale = S::set1(query_factor(settings_));
    for (int row = 0; row < kRows; row += 2 * kL) {
      Lanes lanes[2];
      for (int v = 0; v < 2; ++v) fill_lanes<kMasked>(row + v * kL, begin, past, lanes[v]);
      for (int key = 0; key < kKeys; key += 2) {
        typename S::Vector p[2][2];  // key, vector
        typename S::Vector ds[2][2];
        TW_UNROLL for (int k = 0; k < 2; ++k) {
          TW_UNROLL for (int v = 0; v < 2; ++v) {
            const int64_t at = (key + k) * kRows + row + v * kL;
            p[k][v] = quick_exp2<S>(S::fms(S::load(scores() + at), scale, lanes[v].lse_log2));
            ds[k][v] = S::mul(p[k][v], S::sub(S::load(d_weights() + at), lanes[v].delta));
            if (kMasked) {
              const auto number = S::set1(static_cast<float>(key + k));
              p[k][v] = lanes[v].visible(number, p[k][v]);
              ds[k][v] = lanes[v].visible(number, ds[k][v]);
            }
          }
          const int64_t at = (key + k) * kRows + row;
          S::store_packed(weights() + at, S::pack(p[k][0], p[k][1]));
          S::store_packed(d_scores() + at, S::pack(ds[k][0], ds[k][1]));
        }
        TW_UNROLL for (int v = 0; v < 2; ++v) {
          S::store_packed(to_pairs + (key / 2 * kRows + row + v * kL) * 2,
                          S::interleave(S::pack(ds[0][v], ds[1][v])));
        }
      }
    }
  }

  // Of one vector of rows.
  struct Lanes {
    typename S::Vector lse_log2;
    typename S::Vector delta;
    typename S::Vector first;  // visible keys of the strip
    typename S::Vector past;

    TW_INLINE typename S::Vector visible(typename S::Vector key, typename S::Vector x) const {
      const auto zero = S::set1(0);
      return S::select(S::less(key, past), S::select(S::less(key, first), zero, x), zero);
    }
  };
  template <bool kMasked>
  void fill_lanes(int row, int64_t begin, int64_t past, Lanes& lanes) const {
    lanes.lse_log2 = S::load(scratch_.lse_log2 + row);
    lanes.delta = S::load(scratch_.delta + row);
    if (!kMasked) return;
    float first[S::kLanes];
    float last[S::kLanes];
    for (int i = 0; i < S::kLanes; ++i) {
      const int64_t from = tile_.key_begin[row + i] - begin;
      const int64_t end = (tile_.key_end[row + i] < past ? tile_.key_end[row + i] : past) - begin;
      first[i] = static_cast<float>(from < 0 ? 0 : from > kKeys ? kKeys : from);
      last[i] = static_cast<float>(end < 0 || tile_.idle[row + i] != 0 ? 0 : end);
    }
    lanes.first = S::load(first);
    lanes.past = S::load(last);
  }

  bool strip_is_finite(int64_t key) const {
    return words_are_finite<S>(reinterpret_cast<const float*>(keys() + key * head_tiles_ * 32),
                               kKeys * head_tiles_ * 16) &&
           words_are_finite<S>(reinterpret_cast<const float*>(values() + key * value_tiles_ * 32),
                               kKeys * value_tiles_ * 16);
  }

  // Steps 3 and 4 of a strip over visible pairs only: 0 * NaN.
  void add_visible_pairs_of(int64_t key, int64_t count) const {
    const auto* const q = static_cast<const uint16_t*>(tile_.q.data);
    const auto* const d_out = static_cast<const uint16_t*>(tile_.d_out.data);
    for (int64_t j = key; j < key + count; ++j) {
      const int64_t at = tile_.range_begin + j;
      for (int row = 0; row < tile_.rows; ++row) {
        const bool seen = at >= tile_.key_begin[row] && at < tile_.key_end[row];
        if (!seen || tile_.idle[row] != 0) continue;
        const float p = float_of_bf16(weights()[(j - key) * kRows + row]);
        const float ds = float_of_bf16(d_scores()[(j - key) * kRows + row]);
        for (int d = 0; tile_.d_v != nullptr && d < settings_.value_dim; ++d) {
          tile_.d_v[j * value_tiles_ * 32 + d] +=
              p * float_of_bf16(d_out[row * tile_.d_out.stride + d]);
        }
        for (int d = 0; d < settings_.head_dim; ++d) {
          if (tile_.d_k != nullptr) {
            tile_.d_k[j * head_tiles_ * 32 + d] += ds * float_of_bf16(q[row * tile_.q.stride + d]);
          }
          scratch_.d_queries[d * kRows + row] +=
              ds * float_of_bf16(keys()[j * head_tiles_ * 32 + d]);
        }
      }
    }
  }

  const Settings& settings_;
  const BackwardTile& tile_;
  const BackwardScratch& scratch_;
  int64_t head_tiles_;   // of 32 columns
  int64_t value_tiles_;  // of 32 columns
  int64_t range_rows_;
  bool all_work_ = true;  // no idle row
  bool rows_finite_ = true;
};

template <class S, class T>
void backward_on_tiles(const Settings& settings, const BackwardTile& tile,
                       const BackwardScratch& scratch) {
  BackwardOnTiles<S, T>(settings, tile, scratch).run();
}

template <class S, class T>
void add_tile_d_q(const Settings& settings, const BackwardTile& tile,
                  const BackwardScratch& scratch) {
  constexpr int kRows = BackwardOnTiles<S, T>::kRows;
  float factors[kRows];
  for (float& factor : factors) factor = static_cast<float>(settings.scale);
  unpack_panel<S, kRows, true>(Element::f32, scratch.d_queries, factors, tile.rows,
                               settings.head_dim, {tile.d_q.data, tile.d_q.stride});
}

}  // namespace tilewise::cpu
