// Between rows of elements in memory and what the micro-kernels read: float rows, and panels
// [dim, width] with the rows in SIMD lanes. Never touches a byte outside the rows it is given.
#pragma once

#include "cpu/call.h"
#include "cpu/simd.h"

namespace tilewise::cpu {

template <class S>
constexpr int64_t whole_vectors(int64_t n) {
  return (n + S::kLanes - 1) / S::kLanes * S::kLanes;
}

// n of the elements at p, 0 < n <= kLanes; the other lanes are 0.
template <class S>
TW_INLINE typename S::Vector load_elements(Element element, const void* p, int64_t at, int n) {
  if (element == Element::f32) {
    const float* floats = static_cast<const float*>(p) + at;
    return n == S::kLanes ? S::load(floats) : S::load_first(floats, n);
  }
  const uint16_t* words = static_cast<const uint16_t*>(p) + at;
  uint16_t copy[S::kLanes];
  if (n < S::kLanes) {
    for (int i = 0; i < S::kLanes; ++i) copy[i] = i < n ? words[i] : uint16_t{0};
    words = copy;
  }
  return element == Element::bf16 ? S::load_bf16(words) : S::load_f16(words);
}

template <class S>
TW_INLINE void store_elements(Element element, void* p, int64_t at, int n,
                              typename S::Vector value) {
  if (element == Element::f32) {
    float* floats = static_cast<float*>(p) + at;
    if (n == S::kLanes) {
      S::store(floats, value);
    } else {
      S::store_first(floats, n, value);
    }
    return;
  }
  uint16_t* words = static_cast<uint16_t*>(p) + at;
  uint16_t copy[S::kLanes];
  uint16_t* to = n == S::kLanes ? words : copy;
  if (element == Element::bf16) {
    S::store_bf16(to, value);
  } else {
    S::store_f16(to, value);
  }
  if (n < S::kLanes) {
    for (int i = 0; i < n; ++i) words[i] = copy[i];
  }
}

// Rows as floats, padded with zeros to whole vectors. to: [rows, to_stride].
template <class S, Element kElement>
void copy_rows_of(const Rows& from, int64_t rows, int dim, float* to, int64_t to_stride) {
  const int whole = dim / S::kLanes * S::kLanes;
  constexpr int kBytes = kElement == Element::f32 ? 4 : 2;
  constexpr int64_t kAhead = 8;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t first = r * from.stride;
    float* line = to + r * to_stride;
    // Rows of interleaved heads lie too far apart for the hardware to guess the next one.
    if (r + kAhead < rows) {
      const char* next =
          static_cast<const char*>(from.data) + (first + kAhead * from.stride) * kBytes;
      for (int b = 0; b < dim * kBytes; b += 64) __builtin_prefetch(next + b);
    }
    for (int d = 0; d < whole; d += S::kLanes) {
      S::store(line + d, load_elements<S>(kElement, from.data, first + d, S::kLanes));
    }
    if (whole < dim) {
      S::store(line + whole, load_elements<S>(kElement, from.data, first + whole, dim - whole));
    }
  }
}

template <class S>
void copy_rows(Element element, const Rows& from, int64_t rows, int dim, float* to,
               int64_t to_stride) {
  switch (element) {
    case Element::f32:
      return copy_rows_of<S, Element::f32>(from, rows, dim, to, to_stride);
    case Element::bf16:
      return copy_rows_of<S, Element::bf16>(from, rows, dim, to, to_stride);
    case Element::f16:
      return copy_rows_of<S, Element::f16>(from, rows, dim, to, to_stride);
  }
}

// Rows of one block as strips of kScoreRows columns; columns past `dim` are 0.
template <class S, Element kElement>
void copy_strips_of(const Rows& from, int64_t rows, int dim, const Rows& to) {
  constexpr int kBytes = kElement == Element::f32 ? 4 : 2;
  constexpr int64_t kAhead = 8;
  constexpr int kStrip = S::kScoreRows;
  float* const strips = static_cast<float*>(const_cast<void*>(to.data));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t first = r * from.stride;
    if (r + kAhead < rows) {
      const char* next =
          static_cast<const char*>(from.data) + (first + kAhead * from.stride) * kBytes;
      for (int b = 0; b < dim * kBytes; b += 64) __builtin_prefetch(next + b);
    }
    for (int d = 0; d < dim; d += S::kLanes) {
      const int n = dim - d < S::kLanes ? dim - d : S::kLanes;
      S::template store_strips<kStrip>(strips + d / kStrip * to.strip + r * kStrip, to.strip,
                                       (n + kStrip - 1) / kStrip,
                                       load_elements<S>(kElement, from.data, first + d, n));
    }
  }
}

template <class S>
void copy_strips(Element element, const Rows& from, int64_t rows, int dim, const Rows& to) {
  switch (element) {
    case Element::f32:
      return copy_strips_of<S, Element::f32>(from, rows, dim, to);
    case Element::bf16:
      return copy_strips_of<S, Element::bf16>(from, rows, dim, to);
    case Element::f16:
      return copy_strips_of<S, Element::f16>(from, rows, dim, to);
  }
}

// panel [dim, width] = factor * transposed rows; lanes past `rows` are 0.
template <class S, int kWidth>
void pack_panel(Element element, const Rows& from, int rows, int dim, float factor, float* panel) {
  using Vector = typename S::Vector;
  const Vector scale = S::set1(factor);
  for (int lane = 0; lane < kWidth; lane += S::kLanes) {
    for (int d = 0; d < dim; d += S::kLanes) {
      const int n = dim - d < S::kLanes ? dim - d : S::kLanes;
      Vector square[S::kLanes];
      for (int i = 0; i < S::kLanes; ++i) {
        const int64_t row = lane + i;
        square[i] =
            row < rows
                ? S::mul(scale, load_elements<S>(element, from.data, row * from.stride + d, n))
                : S::set1(0);
      }
      S::transpose(square);
      for (int i = 0; i < n; ++i) S::store(panel + (d + i) * kWidth + lane, square[i]);
    }
  }
}

// rows = transposed panel [dim, width], each row times factors[row]; or += (floats only).
template <class S, int kWidth, bool kAdd = false>
void unpack_panel(Element element, const float* panel, const float* factors, int rows, int dim,
                  const OutputRows& to) {
  using Vector = typename S::Vector;
  for (int lane = 0; lane < rows; lane += S::kLanes) {
    const Vector factor = S::load(factors + lane);
    for (int d = 0; d < dim; d += S::kLanes) {
      const int n = dim - d < S::kLanes ? dim - d : S::kLanes;
      Vector square[S::kLanes];
      for (int i = 0; i < S::kLanes; ++i) {
        square[i] = i < n ? S::mul(factor, S::load(panel + (d + i) * kWidth + lane)) : S::set1(0);
      }
      S::transpose(square);
      for (int i = 0; i < S::kLanes && lane + i < rows; ++i) {
        const int64_t at = (lane + i) * to.stride + d;
        if (kAdd) square[i] = S::add(square[i], load_elements<S>(element, to.data, at, n));
        store_elements<S>(element, to.data, at, n, square[i]);
      }
    }
  }
}

// Rows of floats, times a factor, as elements.
template <class S>
void write_rows(const RowsToWrite& w) {
  const auto factor = S::set1(w.factor);
  for (int64_t r = 0; r < w.rows; ++r) {
    for (int d = 0; d < w.dim; d += S::kLanes) {
      const int n = w.dim - d < S::kLanes ? w.dim - d : S::kLanes;
      const auto line = load_elements<S>(Element::f32, w.floats.data, r * w.floats.stride + d, n);
      store_elements<S>(w.element, w.to.data, r * w.to.stride + d, n, S::mul(line, factor));
    }
  }
}

// Whether no element is NaN or infinite: x * 0 is then 0.
template <class S>
bool all_finite(const Rows& rows, int64_t count, int dim) {
  using Vector = typename S::Vector;
  Vector sum = S::set1(0);
  const float* data = static_cast<const float*>(rows.data);
  int64_t lines = count;
  int64_t step = rows.stride;
  int64_t length = dim;
  if (rows.strip != 0) {
    lines = (dim + rows.stride - 1) / rows.stride;
    step = rows.strip;
    length = count * rows.stride;
  }
  for (int64_t r = 0; r < lines; ++r) {
    const float* line = data + r * step;
    int64_t i = 0;
    for (; i + S::kLanes <= length; i += S::kLanes) {
      sum = multiply_add<S>(S::load(line + i), S::set1(0), sum);
    }
    if (i < length) {
      const auto last = S::load_first(line + i, static_cast<int>(length - i));
      sum = multiply_add<S>(last, S::set1(0), sum);
    }
  }
  float lanes[S::kLanes];
  S::store(lanes, sum);
  for (int i = 0; i < S::kLanes; ++i) {
    if (lanes[i] != 0) return false;
  }
  return true;
}

TW_INLINE const float* row_of(const Rows& rows, int64_t row) {
  return static_cast<const float*>(rows.data) + row * rows.stride;
}

// Rows [first, ...) of elements.
TW_INLINE Rows rows_from(Element element, const Rows& rows, int64_t first) {
  const int64_t bytes = element == Element::f32 ? 4 : 2;
  return {static_cast<const char*>(rows.data) + first * rows.stride * bytes, rows.stride};
}

// A block of keys of a sequence, as floats from its first key on.
struct Block {
  int64_t begin;
  int64_t end;
  Rows keys;
  Rows values;
};

// Lanes of a panel in a matrix of weights.
struct PanelLanes {
  int first;  // lane of the tile
  int width;
  int64_t stride;  // floats between keys
};

template <class S, class Scratch>
TW_INLINE Block load_block(const Settings& settings, const Tile& tile, int64_t begin, int64_t end,
                           const Scratch& scratch) {
  Block block = {begin, end, rows_from(settings.element, tile.k, begin),
                 rows_from(settings.element, tile.v, begin)};
  if (settings.copy_keys) {
    copy_rows<S>(settings.element, block.keys, end - begin, settings.head_dim, scratch.keys,
                 settings.key_row);
    block.keys = {scratch.keys, settings.key_row};
  }
  if (settings.copy_values) {
    copy_rows<S>(settings.element, block.values, end - begin, settings.value_dim, scratch.values,
                 settings.value_row);
    block.values = {scratch.values, settings.value_row};
  }
  return block;
}

}  // namespace tilewise::cpu
