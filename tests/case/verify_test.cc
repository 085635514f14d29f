// The verifier itself: it must see what a broken kernel does, or no other test means anything.
#include "case/verify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "case/case_tensors.h"
#include "case/tolerance.h"
#include "problem.h"
#include "reference/reference.h"

namespace tilewise {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Tolerance, IsTheFormula) {
  const Expected expected{2.0, 3.0, 5.0};
  EXPECT_DOUBLE_EQ(error_bound(DType::f32, DType::f32, expected),
                   0x1p-24 * (2 + kC1 * 3 + kC2 * 5) + 0x1p-110);
  EXPECT_DOUBLE_EQ(error_bound(DType::bf16, DType::bf16, expected),
                   0x1p-8 * (2 + kC1 * 3) + 0x1p-24 * kC2 * 5 + 0x1p-110);
  EXPECT_DOUBLE_EQ(error_bound(DType::f16, DType::f16, expected),
                   0x1p-11 * (2 + kC1 * 3) + 0x1p-24 * kC2 * 5 + 0x1p-25);
  // lse and d_sink are f32 whatever the inputs are.
  EXPECT_DOUBLE_EQ(error_bound(DType::f32, DType::bf16, expected),
                   0x1p-24 * 2 + 0x1p-8 * kC1 * 3 + 0x1p-24 * kC2 * 5 + 0x1p-110);
}

TEST(Tolerance, NanAndInfinityMustStandWhereTheyBelong) {
  const auto ratio = [](double expected, double got) {
    return error_ratio(DType::f16, DType::f16, {expected, 0, 0}, got);
  };
  EXPECT_EQ(ratio(kNan, kNan), 0);
  EXPECT_EQ(ratio(kNan, 0), kInfinity);
  EXPECT_EQ(ratio(0, kNan), kInfinity);
  EXPECT_EQ(ratio(-kInfinity, -kInfinity), 0);
  EXPECT_EQ(ratio(-kInfinity, kInfinity), kInfinity);
  EXPECT_EQ(ratio(-kInfinity, -3e38), kInfinity);
  EXPECT_EQ(ratio(1, kInfinity), kInfinity);
  // 65520 is where rounding to fp16 overflows.
  EXPECT_EQ(ratio(70000, kInfinity), 0);
  EXPECT_EQ(ratio(70000, -kInfinity), kInfinity);
  EXPECT_LE(ratio(65500, 65504), 1);
}

TEST(Verify, PassesWhatIsRight) {
  const Verdict verdict =
      verify_case(parse_case("b=2 hq=4 hkv=2 q=9 kv=12 d=6 dir=bwd mask=causal sink=1 dtype=bf16"),
                  "reference");
  EXPECT_TRUE(verdict.passed);
  EXPECT_TRUE(verdict.supported);
  ASSERT_EQ(verdict.tensors.size(), 6u);
  EXPECT_EQ(verdict.tensors[0].name, "out");
  EXPECT_EQ(verdict.tensors[0].checked, 2 * 4 * 9 * 6);
  EXPECT_GT(verdict.worst_ratio(), 0);
  EXPECT_LE(verdict.worst_ratio(), 1);
  EXPECT_EQ(verdict.rerun,
            "tilewise check \"b=2 hq=4 hkv=2 q=9 kv=12 d=6 mask=causal dtype=bf16 dir=bwd sink=1\" "
            "--backend reference");
}

TEST(Verify, SamplesLongProblems) {
  const Verdict verdict = verify_case(parse_case("q=1 kv=8192 hq=2 d=64"), "reference");
  EXPECT_TRUE(verdict.passed);
  EXPECT_EQ(verdict.tensors[0].checked, 2 * 64);
}

TEST(Verify, ReportsABadCallAsAFailure) {
  const Verdict verdict = verify_case(parse_case("q=4 d=257"), "reference");
  EXPECT_FALSE(verdict.passed);
  ASSERT_EQ(verdict.failures.size(), 1u);
  EXPECT_EQ(verdict.failures[0], "tilewise::forward: q.size[3] is 257, expected 1..256");
  EXPECT_FALSE(verify_case(parse_case("q=4 d=4"), "abacus").passed);
}

// What a kernel bug does to a result, done by hand to the reference's output.
class BrokenResult : public ::testing::Test {
 protected:
  BrokenResult()
      : tensors_(parse_case("hq=2 q=20 kv=300 d=16 seed=4")),
        problem_(make_problem(Direction::forward, tensors_.forward(), tensors_.options())),
        exact_(reference::forward(problem_, tensors_.forward())) {}
  // Largest ratio of out when each value is replaced by change(value, magnitude).
  template <class Change>
  double ratio(DType dtype, const Change& change) const {
    double worst = 0;
    for (size_t i = 0; i < exact_.out.value.size(); ++i) {
      const Expected expected{exact_.out.value[i], exact_.out.low[i], exact_.out.high[i]};
      const double got = reference::round_to(dtype, change(expected));
      worst = std::max(worst, error_ratio(dtype, dtype, expected, got));
    }
    return worst;
  }
  CaseTensors tensors_;
  Problem problem_;
  reference::Result64 exact_;
};

TEST_F(BrokenResult, ExactValuesPass) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    EXPECT_LE(ratio(dtype, [](const Expected& x) { return x.value; }), 1);
  }
}

TEST_F(BrokenResult, OneKeyInThreeHundredCounts) {
  // A dropped key moves out by about A / 300; fp32 and fp16 must see it in every row.
  const auto drop = [](const Expected& x) { return x.value + x.low / 300; };
  EXPECT_GT(ratio(DType::f32, drop), 10);
  EXPECT_GT(ratio(DType::f16, drop), 1.5);
}

TEST_F(BrokenResult, WeightsRoundedToBf16DoNotPassAsFp32) {
  EXPECT_GT(ratio(DType::f32, [](const Expected& x) { return x.value + 0x1p-9 * x.low; }), 10);
}

}  // namespace
}  // namespace tilewise
