// The one matrix product all kernels are made of: C [rows][vectors] += A [rows][depth] B [depth].
//
// B and C rows are vectors (queries, or head_dim, in SIMD lanes); every element of A is broadcast
// from where it lies. A row of the product is summed over depth in order, whatever the tile height,
// so equal rows of A give equal bits. Where S multiplies pairs of bf16, an element of A and B is a
// pair, and depth counts pairs. docs/cpu-kernels.md
#pragma once

#include "cpu/simd.h"

namespace tilewise::cpu {

// How A lies: element (r, t) is a[r * a_stride + t] or a[t * a_stride + r].
enum class Operand { rows, columns };

enum class Finish {
  store,      // C = product, of pairs times `factor`
  store_max,  // and lanes = max(lanes, C), NaN ignored
  rescale,    // C = C * lanes + product
  add         // C += product
};

struct Product {
  const float* a;
  int64_t a_stride;
  const float* b;  // [depth, vectors]
  int64_t b_stride;
  int64_t depth;
  float* c;  // [rows, vectors]
  int64_t c_stride;
  float* lanes;       // [vectors], for store_max and rescale
  int64_t strip = 0;  // columns: from A's first kRows rows to the next; 0: they lie side by side
  float factor = 1;
};

// noinline: inlined into a large caller GCC 12 spills the sums (77 instead of 97 % of peak).
template <class S, Operand kA, Finish kFinish, int kRows, int kVectors>
__attribute__((noinline)) void product_tile(const Product& product) {
  using Vector = typename S::Vector;
  Vector sum[kRows][kVectors];
  TW_UNROLL for (int r = 0; r < kRows; ++r) {
    TW_UNROLL for (int v = 0; v < kVectors; ++v) sum[r][v] = S::set1(0);
  }
  const float* a = product.a;
  const float* b = product.b;
  const int64_t a_stride = product.a_stride;
  const int64_t b_stride = product.b_stride;
  for (int64_t t = product.depth; t > 0; --t) {
    Vector line[kVectors];
    TW_UNROLL for (int v = 0; v < kVectors; ++v) {
      line[v] = S::load(b + v * S::kLanes);
      S::pin(line[v]);
    }
    TW_UNROLL for (int r = 0; r < kRows; ++r) {
      const Vector x = S::set1(kA == Operand::rows ? a[r * a_stride] : a[r]);
      TW_UNROLL for (int v = 0; v < kVectors; ++v) sum[r][v] =
          multiply_add<S>(x, line[v], sum[r][v]);
    }
    a += kA == Operand::rows ? 1 : a_stride;
    b += b_stride;
  }
  TW_UNROLL for (int v = 0; v < kVectors; ++v) {
    Vector lanes = S::set1(0);
    if constexpr (kFinish == Finish::store_max || kFinish == Finish::rescale) {
      lanes = S::load(product.lanes + v * S::kLanes);
    }
    TW_UNROLL for (int r = 0; r < kRows; ++r) {
      float* c = product.c + r * product.c_stride + v * S::kLanes;
      if constexpr (kPairs<S> && (kFinish == Finish::store || kFinish == Finish::store_max)) {
        sum[r][v] = S::mul(sum[r][v], S::set1(product.factor));
      }
      if constexpr (kFinish == Finish::rescale) sum[r][v] = S::fma(S::load(c), lanes, sum[r][v]);
      if constexpr (kFinish == Finish::add) sum[r][v] = S::add(S::load(c), sum[r][v]);
      if constexpr (kFinish == Finish::store_max) lanes = S::max(sum[r][v], lanes);
      S::store(c, sum[r][v]);
    }
    if constexpr (kFinish == Finish::store_max) S::store(product.lanes + v * S::kLanes, lanes);
  }
}

template <class S, Operand kA, Finish kFinish, int kRows, int kVectors>
void product_tail(const Product& product, int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      product_tile<S, kA, kFinish, kRows, kVectors>(product);
    } else {
      product_tail<S, kA, kFinish, kRows - 1, kVectors>(product, rows);
    }
  }
}

// Any number of rows, kRows at a time.
template <class S, Operand kA, Finish kFinish, int kRows, int kVectors>
void multiply(Product product, int64_t rows) {
  const int64_t a_step = kA == Operand::rows  ? kRows * product.a_stride
                         : product.strip != 0 ? product.strip
                                              : kRows;
  for (; rows >= kRows; rows -= kRows) {
    product_tile<S, kA, kFinish, kRows, kVectors>(product);
    product.a += a_step;
    product.c += kRows * product.c_stride;
  }
  product_tail<S, kA, kFinish, kRows - 1, kVectors>(product, rows);
}

// C [rows, columns] += A B with head_dim in lanes; `columns` is a multiple of the vector length.
template <class S>
void multiply_add_wide(Product product, int64_t rows, int64_t columns) {
  constexpr int kStep = S::kGradientVectors * S::kLanes;
  for (; columns >= kStep; columns -= kStep) {
    multiply<S, Operand::rows, Finish::add, S::kGradientRows, S::kGradientVectors>(product, rows);
    product.b += kStep;
    product.c += kStep;
  }
  for (; columns > 0; columns -= S::kLanes) {
    multiply<S, Operand::rows, Finish::add, S::kGradientRows, 1>(product, rows);
    product.b += S::kLanes;
    product.c += S::kLanes;
  }
}

}  // namespace tilewise::cpu
