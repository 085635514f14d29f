// The micro-kernel and exp2 of this machine's instruction sets, through the kernels' own templates,
// against naive loops. Compiled for the portable vector; the other sets run through whole Cases.
#include "cpu/micro_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cpu/exp2.h"
#include "cpu/pack.h"
#include "cpu/simd_scalar.h"

namespace tilewise::cpu {
namespace {

using S = Scalar;
constexpr int kWide = S::kScoreVectors * S::kLanes;

std::vector<float> random_floats(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

// One product, its operands and the naive result.
struct Sample {
  int64_t rows;
  int64_t depth;
  std::vector<float> a, b, c, lanes;
  std::vector<double> expected;

  Sample(Operand kind, int64_t row_count, int64_t depth_count)
      : rows(row_count), depth(depth_count) {
    a = random_floats(static_cast<size_t>(rows * depth), 1);
    b = random_floats(static_cast<size_t>(depth * kWide), 2);
    c = random_floats(static_cast<size_t>(rows * kWide), 3);
    lanes = random_floats(kWide, 4);
    for (int64_t r = 0; r < rows; ++r) {
      for (int w = 0; w < kWide; ++w) {
        double sum = 0;
        for (int64_t t = 0; t < depth; ++t) {
          const auto at = static_cast<size_t>(kind == Operand::rows ? r * depth + t : t * rows + r);
          sum += static_cast<double>(a[at]) *
                 static_cast<double>(b[static_cast<size_t>(t * kWide + w)]);
        }
        expected.push_back(sum);
      }
    }
  }
  Product product(Operand kind) {
    return {
        a.data(),    kind == Operand::rows ? depth : rows, b.data(), kWide, depth, c.data(), kWide,
        lanes.data()};
  }
};

template <Operand kA, Finish kFinish>
void expect_product(int64_t rows, int64_t depth) {
  SCOPED_TRACE(testing::Message() << rows << " rows, depth " << depth);
  Sample sample(kA, rows, depth);
  const std::vector<float> before = sample.c;
  std::vector<float> maxima = sample.lanes;
  multiply<S, kA, kFinish, S::kScoreRows, S::kScoreVectors>(sample.product(kA), rows);
  for (size_t i = 0; i < sample.c.size(); ++i) {
    const size_t lane = i % kWide;
    double expected = sample.expected[i];
    if (kFinish == Finish::add) expected += static_cast<double>(before[i]);
    if (kFinish == Finish::rescale) {
      expected += static_cast<double>(before[i]) * static_cast<double>(maxima[lane]);
    }
    EXPECT_NEAR(sample.c[i], expected, 1e-5) << i;
  }
  if (kFinish != Finish::store_max) return;
  for (size_t i = 0; i < sample.c.size(); ++i) {
    maxima[i % kWide] = std::max(maxima[i % kWide], sample.c[i]);
  }
  EXPECT_EQ(sample.lanes, maxima);
}

TEST(MicroKernel, MatchesNaiveLoopsAtEveryHeightAndDepth) {
  for (int64_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 13}) {
    for (int64_t depth : {0, 1, 2, 17}) {
      expect_product<Operand::rows, Finish::store>(rows, depth);
      expect_product<Operand::rows, Finish::store_max>(rows, depth);
      expect_product<Operand::columns, Finish::rescale>(rows, depth);
      expect_product<Operand::columns, Finish::add>(rows, depth);
    }
  }
}

TEST(MicroKernel, AddsWideRowsOfAnyWholeNumberOfVectors) {
  constexpr int64_t kRows = 7;
  constexpr int64_t kDepth = 11;
  for (int64_t columns = S::kLanes; columns <= 5 * S::kLanes; columns += S::kLanes) {
    const auto a = random_floats(kRows * kDepth, 5);
    const auto b = random_floats(static_cast<size_t>(kDepth * columns), 6);
    std::vector<float> c(static_cast<size_t>(kRows * columns), 1.0f);
    multiply_add_wide<S>({a.data(), kDepth, b.data(), columns, kDepth, c.data(), columns, nullptr},
                         kRows, columns);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t w = 0; w < columns; ++w) {
        double sum = 1;
        for (int64_t t = 0; t < kDepth; ++t) {
          sum += static_cast<double>(a[static_cast<size_t>(r * kDepth + t)]) *
                 static_cast<double>(b[static_cast<size_t>(t * columns + w)]);
        }
        EXPECT_NEAR(c[static_cast<size_t>(r * columns + w)], sum, 1e-5);
      }
    }
  }
}

float exp2_of(float x) {
  float lanes[S::kLanes];
  S::store(lanes, exp2_any<S>(S::set1(x)));
  return lanes[0];
}

TEST(Exp2, IsWithinTwoUlp) {
  for (float x = -126; x <= 127; x += 0.00317f) {
    const double exact = std::exp2(static_cast<double>(x));
    EXPECT_NEAR(exp2_of(x) / exact, 1, 2.4e-7) << x;
  }
}

TEST(Exp2, KeepsItsSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp2_of(0), 1.0f);
  EXPECT_EQ(exp2_of(-0.0f), 1.0f);
  for (float n = -126; n <= 127; n += 1)
    EXPECT_EQ(exp2_of(n), std::ldexp(1.0f, static_cast<int>(n)));
  for (float x : {-127.0f, -150.0f, -1e4f, -1e30f, -3e38f, -infinity}) EXPECT_EQ(exp2_of(x), 0.0f);
  for (float x : {128.0f, 129.0f, 1e10f, infinity}) EXPECT_EQ(exp2_of(x), infinity);
  for (const char* payload : {"0", "1", "0xdead", "0x3fffff"}) {
    EXPECT_TRUE(std::isnan(exp2_of(std::nanf(payload))));
    EXPECT_TRUE(std::isnan(exp2_of(-std::nanf(payload))));
  }
}

float tanh_value(float x) {
  float lanes[S::kLanes];
  S::store(lanes, tanh_of<S>(S::set1(x)));
  return lanes[0];
}

TEST(Tanh, IsAccurateRelativeToItsValue) {
  for (float x = 1e-6f; x < 20; x *= 1.003f) {
    const double exact = std::tanh(static_cast<double>(x));
    EXPECT_NEAR(tanh_value(x) / exact, 1, 4e-7) << x;
    EXPECT_EQ(tanh_value(-x), -tanh_value(x));
  }
  EXPECT_EQ(tanh_value(0), 0.0f);
  EXPECT_EQ(tanh_value(std::numeric_limits<float>::infinity()), 1.0f);
  EXPECT_TRUE(std::isnan(tanh_value(std::nanf(""))));
}

TEST(Pack, PanelsGoThereAndBack) {
  constexpr int kDim = 13;
  for (int rows : {1, 5, kWide}) {
    const auto from = random_floats(static_cast<size_t>(rows * kDim), 7);
    std::vector<float> panel(kDim * kWide, -1.0f);
    pack_panel<S, kWide>(Element::f32, {from.data(), kDim}, rows, kDim, 2.0f, panel.data());
    for (int lane = 0; lane < kWide; ++lane) {
      for (int d = 0; d < kDim; ++d) {
        const float expected = lane < rows ? 2 * from[static_cast<size_t>(lane * kDim + d)] : 0.0f;
        EXPECT_EQ(panel[static_cast<size_t>(d * kWide + lane)], expected);
      }
    }
    std::vector<float> to(static_cast<size_t>(rows * kDim), -1.0f);
    const std::vector<float> halves(kWide, 0.5f);
    unpack_panel<S, kWide>(Element::f32, panel.data(), halves.data(), rows, kDim,
                           {to.data(), kDim});
    EXPECT_EQ(to, from);
  }
}

TEST(Pack, FindsWhatIsNotFinite) {
  auto values = random_floats(9 * 13, 8);
  EXPECT_TRUE(all_finite<S>({values.data(), 13}, 9, 13));
  values[9 * 13 - 1] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(all_finite<S>({values.data(), 13}, 9, 13));
  EXPECT_TRUE(all_finite<S>({values.data(), 13}, 9, 12));
}

}  // namespace
}  // namespace tilewise::cpu
