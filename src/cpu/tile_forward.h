// Forward of one query tile of bf16 on matrix tiles (AMX): short rows by tile_rows.h, long ones by
// tile_steps.h. Queries are rows here, not lanes. docs/cpu-kernels.md
#pragma once

#include "cpu/tile_rows.h"
#include "cpu/tile_steps.h"
#include "cpu/tile_words.h"

namespace tilewise::cpu {

constexpr int kTileRows = 32;  // of a panel

// Queries [rows, head_tiles * 32] from row `first` of the tile, zeros past the last.
template <class S>
void copy_queries(const TileCall<S>& call, int first, int rows, uint16_t* to) {
  const int64_t columns = call.head_tiles * 32;
  const auto* const q = static_cast<const uint16_t*>(call.tile.q.data);
  for (int64_t row = first; row < first + rows; ++row) {
    copy_words(q + row * call.tile.q.stride, row < call.tile.rows ? call.settings.head_dim : 0,
               columns, to + (row - first) * columns);
  }
}

// Out and lse of rows [first, past) from what a kernel leaves.
template <class S, class Kernel>
void finish_tile_rows(const TileCall<S>& call, int first, int past, const Kernel& kernel) {
  const int dim = call.settings.value_dim;
  for (int row = first; row < past; ++row) {
    float lse = 0;
    const float factor = finish_row(call.settings, call.tile.sink, call.scratch.maxima[row],
                                    kernel.sum(row - first), &lse);
    if (call.tile.lse != nullptr) call.tile.lse[row] = lse;
    const float* const out = call.scratch.outs + (row - first) * call.value_pairs * 32;
    for (int d = 0; d < dim; d += S::kLanes) {
      const int n = dim - d < S::kLanes ? dim - d : S::kLanes;
      store_elements<S>(Element::bf16, call.tile.out.data, row * call.tile.out.stride + d, n,
                        S::mul(S::load(out + d), S::set1(factor)));
    }
  }
}

template <class S, class T, int kHeadTiles, int kValueTiles>
void forward_short_rows(const TileCall<S>& call) {
  using Kernel = RowsOnTiles<S, T, kHeadTiles, kValueTiles>;
  auto* const queries = reinterpret_cast<uint16_t*>(call.scratch.queries);
  for (int first = 0; first < call.tile.rows; first += Kernel::kRows) {
    copy_queries(call, first, Kernel::kRows, queries);
    Kernel kernel(call, first, queries);
    kernel.run();
    const int past = first + Kernel::kRows;
    finish_tile_rows(call, first, past < call.tile.rows ? past : call.tile.rows, kernel);
  }
}

template <class S, class T>
void forward_long_rows(const TileCall<S>& call) {
  const int panels = (call.tile.rows + kTileRows - 1) / kTileRows;
  auto* const queries = reinterpret_cast<uint16_t*>(call.scratch.queries);
  copy_queries(call, 0, panels * kTileRows, queries);
  for (int64_t i = 0; i < int64_t{panels} * kTileRows * call.value_pairs * 32; i += S::kLanes) {
    S::store(call.scratch.outs + i, S::set1(0));
  }
  for (int64_t i = 0; i < int64_t{panels} * kTileRows * 2; ++i) {
    S::store(call.scratch.sums + i * S::kLanes, S::set1(0));
  }
  StepsOnTiles<S, T> kernel(call, panels, queries);
  kernel.run();
  finish_tile_rows(call, 0, call.tile.rows, kernel);
}

// The peak that matrix tiles are measured against.
template <class T>
double dot_rounds(int64_t rounds) {
  T::start();
  for (int64_t r = 0; r < rounds; ++r) {
    T::template dot<0, 4, 6>();
    T::template dot<1, 5, 7>();
    T::template dot<2, 4, 6>();
    T::template dot<3, 5, 7>();
  }
  T::stop();
  return 4.0 * 2 * 16 * 16 * 32 * static_cast<double>(rounds);
}

template <class S, class T>
void forward_on_tiles(const Settings& settings, const ForwardTile& tile,
                      const ForwardScratch& scratch) {
  const TileCall<S> call = {settings,
                            tile,
                            scratch,
                            (settings.head_dim + 31) / 32,
                            (settings.value_dim + 31) / 32,
                            query_factor(settings)};
  for (int64_t row = 0; row < int64_t{settings.panels} * kTileRows; ++row) {
    scratch.maxima[row] = -kInfinity;
  }
  T::start();
  if (call.head_tiles > 2 || call.value_pairs > 2) {
    forward_long_rows<S, T>(call);
  } else if (call.head_tiles == 1) {
    (call.value_pairs == 1 ? forward_short_rows<S, T, 1, 2> : forward_short_rows<S, T, 1, 4>)(call);
  } else {
    (call.value_pairs == 1 ? forward_short_rows<S, T, 2, 2> : forward_short_rows<S, T, 2, 4>)(call);
  }
  T::stop();
}

}  // namespace tilewise::cpu
