// Unit of a vector type; see micro_kernel.h. All operands lie in the first-level cache, as in a
// tile.
#pragma once

#include "cpu/isa_unit.h"
#include "tests/speed/micro_kernel.h"

namespace tilewise::speed {

template <class S>
struct Sample {
  static constexpr int kRows = 48;  // of any unit's heights
  static constexpr int kDepth = 128;
  static constexpr int kWide = S::kScoreVectors * S::kLanes;
  static inline float a[kRows * kDepth];
  static inline float b[kDepth * kWide];
  static inline float c[kRows * kWide];
  static inline float lanes[kWide];
  static constexpr double kFlops = 2.0 * kRows * kDepth * kWide;
};

template <class S, cpu::Operand kA, cpu::Finish kFinish, int kRows, int kVectors>
double multiply_times(int count) {
  using Operands = Sample<S>;
  constexpr int kWidth = kVectors * S::kLanes;
  cpu::Product product = {Operands::a,      Operands::kDepth, Operands::b, kWidth,
                          Operands::kDepth, Operands::c,      kWidth,      Operands::lanes};
  if (kA == cpu::Operand::columns) {  // V lies in strips of kRows columns
    product.a_stride = kRows;
    product.strip = int64_t{kRows} * Operands::kDepth;
  }
  for (int i = 0; i < count; ++i) {
    cpu::multiply<S, kA, kFinish, kRows, kVectors>(product, Operands::kRows);
  }
  const double products = cpu::kPairs<S> ? 2 : 1;  // of an element
  return 2.0 * products * Operands::kRows * Operands::kDepth * kWidth * count;
}

template <class S>
double peak_times(int count) {
  return cpu::product_rounds<S>(1000L * count);
}

template <class S>
constexpr Unit unit_of(const char* name, bool (*available)()) {
  using cpu::Finish;
  using cpu::Operand;
  constexpr int kRows = S::kScoreRows;
  constexpr int kVectors = S::kScoreVectors;
  return {name,
          available,
          {"peak", &peak_times<S>},
          {{"scores", &multiply_times<S, Operand::rows, Finish::store_max, kRows, kVectors>},
           {"output", &multiply_times<S, Operand::columns, Finish::rescale, kRows, kVectors>},
           {"gradients",
            &multiply_times<S, Operand::rows, Finish::add, S::kGradientRows, S::kGradientVectors>}},
          {"one vector", &multiply_times<S, Operand::rows, Finish::store, 1, 1>}};
}

}  // namespace tilewise::speed
