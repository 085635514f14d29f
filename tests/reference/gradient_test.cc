// Every gradient of the float64 reference against central differences of its forward:
// loss = sum dO out + sum dLSE lse, one input element moved at a time.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "case/tolerance.h"
#include "reference/reference.h"
#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

constexpr double kStep = 0x1p-9;

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    // A row without keys has lse -inf; its gradient is taken as zero.
    if (std::isfinite(b[i])) sum += a[i] * b[i];
  }
  return sum;
}

// dO and dLSE in the order of the reference's results: row, head, column.
std::vector<double> upstream(const CaseTensors& tensors, Arg arg) {
  return tensor_of(tensors.backward(), arg).given() ? values_of(tensors, arg)
                                                    : std::vector<double>();
}

double loss(const CaseTensors& tensors) {
  const Problem problem = make_problem(Direction::forward, tensors.forward(), tensors.options());
  const reference::Result64 result = reference::forward(problem, tensors.forward());
  return dot(upstream(tensors, Arg::d_out), result.out.value) +
         dot(upstream(tensors, Arg::d_lse), result.lse.value);
}

// The gradient by central differences, in logical order.
std::vector<double> differences(const CaseTensors& tensors, Arg arg) {
  const Tensor& tensor = tensor_of(tensors.forward(), arg);
  std::vector<double> result;
  for_each_element(tensors.text(), arg, tensor, [&](int64_t offset, const ElementIndex&) {
    auto* const x = static_cast<float*>(tensor.data) + offset;
    const float before = *x;
    const float up = before + static_cast<float>(kStep);
    const float down = before - static_cast<float>(kStep);
    *x = up;
    const double high = loss(tensors);
    *x = down;
    const double low = loss(tensors);
    *x = before;
    const double width = static_cast<double>(up) - static_cast<double>(down);
    result.push_back(std::isfinite(before) ? (high - low) / width : 0.0);
  });
  return result;
}

void expect_close(const std::vector<double>& exact, const std::vector<double>& measured,
                  const std::string& what) {
  ASSERT_EQ(exact.size(), measured.size()) << what;
  double size = 0;
  for (const double x : exact) size = std::max(size, std::fabs(x));
  EXPECT_GT(size, 1e-3) << what << ": the test shows nothing when all is zero";
  for (size_t i = 0; i < exact.size(); ++i) {
    // The third derivative times step^2 / 6.
    ASSERT_NEAR(exact[i], measured[i], 2e-5 * (1 + size)) << what << " element " << i;
  }
}

void expect_gradients(const std::string& options) {
  const std::string text = "hq=4 hkv=2 d=3 dv=5 dir=bwd sink=1 dlse=1 seed=3 " + options;
  SCOPED_TRACE(text);
  CaseTensors tensors(parse_case(text), Poison::off);
  const Problem problem = make_problem(Direction::backward, tensors.backward(), tensors.options());
  const reference::Gradients64 exact = reference::backward(problem, tensors.backward());
  expect_close(exact.d_q.value, differences(tensors, Arg::q), "d_q");
  expect_close(exact.d_k.value, differences(tensors, Arg::k), "d_k");
  expect_close(exact.d_v.value, differences(tensors, Arg::v), "d_v");
  expect_close(exact.d_sink.value, differences(tensors, Arg::sink), "d_sink");
}

TEST(ReferenceGradient, Plain) { expect_gradients("q=5 kv=6"); }
TEST(ReferenceGradient, Scale) { expect_gradients("q=5 kv=6 scale=1.25"); }
TEST(ReferenceGradient, Batch) { expect_gradients("b=2 q=4 kv=3"); }
TEST(ReferenceGradient, Causal) { expect_gradients("q=4 kv=6 mask=causal"); }
TEST(ReferenceGradient, CausalWithEmptyRows) { expect_gradients("q=6 kv=4 mask=causal"); }
TEST(ReferenceGradient, CausalTopLeft) { expect_gradients("q=4 kv=6 mask=causal_top_left"); }
TEST(ReferenceGradient, Window) { expect_gradients("q=7 kv=7 mask=window:2:1"); }
TEST(ReferenceGradient, Softcap) { expect_gradients("q=5 kv=6 softcap=1.5"); }
TEST(ReferenceGradient, Alibi) { expect_gradients("q=5 kv=6 alibi=1"); }
TEST(ReferenceGradient, AlibiOfBatch) { expect_gradients("b=2 q=4 kv=4 alibi=2 mask=causal"); }
TEST(ReferenceGradient, Dropout) { expect_gradients("q=5 kv=6 dropout=0.4"); }
TEST(ReferenceGradient, Packed) { expect_gradients("qlens=3,0,4 kvlens=5,2,4 mask=causal"); }
TEST(ReferenceGradient, Strided) { expect_gradients("b=1 q=5 kv=6 layout=bhsd"); }
TEST(ReferenceGradient, Everything) {
  expect_gradients("b=2 q=5 kv=7 mask=window:3:1 softcap=2 alibi=2 dropout=0.25 scale=0.9");
}

// Sampling computes the same numbers as the whole, whichever way it gets the row sums.
TEST(ReferenceGradient, SampledRowsAndKeysEqualTheWhole) {
  CaseTensors tensors(parse_case("b=2 hq=4 hkv=2 q=9 kv=11 d=3 dv=5 dir=bwd sink=1 mask=causal"),
                      Poison::off);
  run_case(tensors, {"reference", ""});
  const Problem problem = make_problem(Direction::backward, tensors.backward(), tensors.options());
  const reference::Selection some{false, false, {0, 4, 8}, {1, 10}};
  const auto whole = reference::backward(problem, tensors.backward());
  const auto part = reference::backward(problem, tensors.backward(), some);
  const auto given =
      reference::backward(problem, tensors.backward(), some, reference::RowSums::given);
  ASSERT_EQ(part.rows.size(), 6u);
  ASSERT_EQ(part.keys.size(), 4u);
  const int64_t per_row = problem.q_heads * problem.head_dim;
  for (int64_t r = 0; r < 6; ++r) {
    const int64_t row = (r / 3) * 9 + some.rows[static_cast<size_t>(r % 3)];
    for (int64_t e = 0; e < per_row; ++e) {
      const double exact = whole.d_q.value[static_cast<size_t>(row * per_row + e)];
      EXPECT_EQ(part.d_q.value[static_cast<size_t>(r * per_row + e)], exact);
      EXPECT_EQ(given.d_q.value[static_cast<size_t>(r * per_row + e)], exact);
    }
  }
  const int64_t per_key = problem.kv_heads * problem.head_dim;
  for (int64_t r = 0; r < 4; ++r) {
    const int64_t key = (r / 2) * 11 + some.keys[static_cast<size_t>(r % 2)];
    for (int64_t e = 0; e < per_key; ++e) {
      const double exact = whole.d_k.value[static_cast<size_t>(key * per_key + e)];
      EXPECT_EQ(part.d_k.value[static_cast<size_t>(r * per_key + e)], exact);
      // The given sums are rounded to f32.
      EXPECT_NEAR(given.d_k.value[static_cast<size_t>(r * per_key + e)], exact, 1e-5);
    }
  }
}

// A backend that forms delta from its own weights differs from one that reads the rounded out: the
// bound of the sampled gradient must cover both.
TEST(ReferenceGradient, GivenRowSumsAllowForTheRoundingOfOut) {
  CaseTensors tensors(parse_case("hq=3 hkv=1 q=96 d=16 dir=bwd mask=causal dtype=bf16"),
                      Poison::off);
  run_case(tensors, {"reference", ""});
  const Problem problem = make_problem(Direction::backward, tensors.backward(), tensors.options());
  const auto exact = reference::backward(problem, tensors.backward());
  const auto given =
      reference::backward(problem, tensors.backward(), {}, reference::RowSums::given);
  double worst = 0;
  double worst_without_low = 0;
  for (size_t i = 0; i < exact.d_k.value.size(); ++i) {
    Expected expected{given.d_k.value[i], given.d_k.low[i], given.d_k.high[i]};
    worst = std::max(worst, error_ratio(DType::f32, DType::bf16, expected, exact.d_k.value[i]));
    expected.low = 0;
    worst_without_low = std::max(
        worst_without_low, error_ratio(DType::f32, DType::bf16, expected, exact.d_k.value[i]));
  }
  EXPECT_LE(worst, 1);
  EXPECT_GT(worst_without_low, 1);
}

}  // namespace
}  // namespace tilewise::test
