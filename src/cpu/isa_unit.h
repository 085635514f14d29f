// What each instruction-set unit exports, as templates over its vector type.
#pragma once

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/standard.h"

namespace tilewise::cpu {

// Independent multiply-adds in registers, or products of pairs: the peak that shares are measured
// against.
template <class S>
__attribute__((noinline)) double product_rounds(int64_t rounds) {
  using Vector = typename S::Vector;
  constexpr int kSums = 12;  // more than latency x ports, fewer than registers
  Vector sum[kSums];
  Vector factor = S::set1(0.999f);
  TW_UNROLL for (int i = 0; i < kSums; ++i) sum[i] = S::set1(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
    TW_UNROLL for (int i = 0; i < kSums; ++i) {
      if constexpr (kPairs<S>) {
        sum[i] = S::dot(factor, factor, sum[i]);
      } else {
        sum[i] = S::fma(sum[i], factor, factor);
      }
      S::pin(sum[i]);
    }
  }
  Vector total = sum[0];
  TW_UNROLL for (int i = 1; i < kSums; ++i) total = S::add(total, sum[i]);
  // Used, so that the loop stays.
  float lanes[S::kLanes];
  S::store(lanes, total);
  volatile float used = lanes[0];
  static_cast<void>(used);
  return (kPairs<S> ? 4.0 : 2.0) * kSums * S::kLanes * static_cast<double>(rounds);
}

template <class S>
constexpr ForwardKernels forward_of() {
  return {kWidth<S>,       S::kScoreRows,   &forward_tile<S>,
          &attend_part<S>, &merge_parts<S>, &copy_keys<S>};
}

template <class S, class Thin, class Narrow = S>
constexpr PairKernels pair_kernels_of() {
  return {forward_of<S>(), forward_of<Narrow>(), forward_of<Thin>(), &product_rounds<S>};
}

// Thin: S with one vector in a panel; Narrow: with fewer.
template <class S, class Thin, class Narrow = S>
constexpr Kernels kernels_of(const char* name) {
  Kernels kernels = {};
  kernels.name = name;
  kernels.lanes = S::kLanes;
  kernels.width = kWidth<S>;
  kernels.wide = forward_of<S>();
  kernels.narrow = forward_of<Narrow>();
  kernels.thin = forward_of<Thin>();
  kernels.copy_rows = &copy_range<S>;
  kernels.backward_tile = &backward_tile<S>;
  kernels.add_d_q = &add_d_q<S>;
  kernels.write_rows = &write_rows<S>;
  kernels.standard_products = &standard_products<S>;
  kernels.standard_softmax = &standard_softmax<S>;
  kernels.standard_out = &standard_out<S>;
  kernels.standard_d_scores = &standard_d_scores<S>;
  kernels.standard_d_q = &standard_d_q<S>;
  kernels.standard_d_kv = &standard_d_kv<S>;
  kernels.fma_rounds = &product_rounds<S>;
  return kernels;
}

}  // namespace tilewise::cpu
