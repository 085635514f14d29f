// The float64 forward against numbers worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "reference/reference.h"
#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

reference::Result64 forward_of(const CaseTensors& tensors) {
  const Problem problem = make_problem(Direction::forward, tensors.forward(), tensors.options());
  return reference::forward(problem, tensors.forward());
}

// Scores 1, 3 | 2, 5 in two tiles. After the first: max 3, sum 1 + e^-2, out e^-2 + 2. After the
// second everything shrinks by e^-2: sum 1.203438, out 4.438347.
TEST(ReferenceForward, OnlineSoftmaxByHand) {
  CaseTensors tensors(parse_case("q=1 kv=4 d=1 scale=1"), Poison::off);
  set_values(tensors, Arg::q, {1});
  set_values(tensors, Arg::k, {1, 3, 2, 5});
  set_values(tensors, Arg::v, {1, 2, 3, 4});
  const reference::Result64 result = forward_of(tensors);
  EXPECT_NEAR(result.lse.value[0], 5.185182452603812, 1e-14);
  EXPECT_NEAR(result.out.value[0], 3.688056589144707, 1e-14);
  EXPECT_NEAR(result.out.low[0], 3.688056589144707, 1e-14);
}

// Rows of 'x' (visible) and '.', against weights of equal scores: 1 / count.
void expect_mask(const std::string& text, const std::vector<std::string>& rows) {
  const auto kv = static_cast<int64_t>(rows[0].size());
  SCOPED_TRACE(text);
  CaseTensors tensors(parse_case(text + " data=zeros d=2 q=" + std::to_string(rows.size()) +
                                 " kv=" + std::to_string(kv) + " dv=" + std::to_string(kv)),
                      Poison::off);
  set_values(tensors, Arg::v,
             [](const ElementIndex& at) { return at.row == at.column ? 1.0 : 0.0; });
  const reference::Result64 result = forward_of(tensors);
  for (size_t i = 0; i < rows.size(); ++i) {
    double count = 0;
    for (const char c : rows[i]) count += c == 'x' ? 1 : 0;
    const double lse = count == 0 ? -std::numeric_limits<double>::infinity() : std::log(count);
    EXPECT_EQ(result.lse.value[i], lse) << "row " << i;
    for (size_t j = 0; j < rows[i].size(); ++j) {
      EXPECT_DOUBLE_EQ(result.out.value[i * static_cast<size_t>(kv) + j],
                       rows[i][j] == 'x' ? 1 / count : 0.0)
          << "row " << i << " key " << j;
    }
  }
}

TEST(ReferenceForward, LiteralMasks) {
  expect_mask("mask=none", {"xxxxx", "xxxxx"});
  expect_mask("mask=causal", {"xxxx.", "xxxxx"});
  expect_mask("mask=causal_top_left", {"x....", "xx..."});
  expect_mask("mask=causal:1", {"xx...", "xxx.."});
  expect_mask("mask=causal:-1", {".....", "x...."});
  expect_mask("mask=window:1:0", {"..xx.", "...xx"});
  expect_mask("mask=window:1:1", {"..xxx", "...xx"});
  expect_mask("mask=window:0:-1", {"...xx", "....x"});
  expect_mask("mask=window_top_left:0:1", {"xx...", ".xx.."});
  expect_mask("mask=causal", {"..", "..", "..", "x.", "xx"});
  expect_mask("mask=causal_top_left", {"x.", "xx", "xx", "xx", "xx"});
  expect_mask("mask=window:0:0", {"..", "..", "..", "x.", ".x"});
  expect_mask("mask=window_top_left:1:0", {"x.", "xx", ".x", "..", ".."});
  expect_mask("mask=window:2:0:-1", {"..", "x.", "xx", "xx", ".x"});
}

TEST(ReferenceForward, AlibiDistancesOfTwoByFive) {
  CaseTensors tensors(parse_case("q=2 kv=5 d=1 dv=5 alibi=1 data=zeros"), Poison::off);
  set_values(tensors, Arg::alibi_slopes, {std::log(2.0)});  // weights 2^-distance
  set_values(tensors, Arg::v,
             [](const ElementIndex& at) { return at.row == at.column ? 1.0 : 0.0; });
  const reference::Result64 result = forward_of(tensors);
  const double distances[2][5] = {{3, 2, 1, 0, 1}, {4, 3, 2, 1, 0}};
  for (size_t i = 0; i < 2; ++i) {
    double sum = 0;
    for (const double distance : distances[i]) sum += std::exp2(-distance);
    for (size_t j = 0; j < 5; ++j) {
      EXPECT_NEAR(result.out.value[i * 5 + j], std::exp2(-distances[i][j]) / sum, 1e-7);
    }
  }
}

// softcap bends scores 0 and 2 to 0 and tanh(2); the sink adds e^0.5 to the denominator.
TEST(ReferenceForward, SoftcapAndSinkByHand) {
  CaseTensors tensors(parse_case("q=1 kv=2 d=1 scale=1 softcap=1 sink=1"), Poison::off);
  set_values(tensors, Arg::q, {2});
  set_values(tensors, Arg::k, {0, 1});
  set_values(tensors, Arg::v, {1, 10});
  set_values(tensors, Arg::sink, {0.5});
  const reference::Result64 result = forward_of(tensors);
  const double bent = std::exp(std::tanh(2.0));
  const double sum = 1 + bent + std::exp(0.5);
  EXPECT_NEAR(result.out.value[0], (1 + 10 * bent) / sum, 1e-15);
  EXPECT_NEAR(result.lse.value[0], std::log(sum), 1e-15);
}

// Weights 1 and 2^-30: in fp16 the small one counts as 2^-20 in the bound, in no result.
TEST(ReferenceForward, SmallHalfWeightsAreWrongByAShareOfTheLargest) {
  for (const bool half : {true, false}) {
    CaseTensors tensors(
        parse_case(std::string("q=1 kv=2 d=1 scale=1 dtype=") + (half ? "fp16" : "bf16")),
        Poison::off);
    set_values(tensors, Arg::q, {1});
    set_values(tensors, Arg::k, {0, -20.75});
    set_values(tensors, Arg::v, {0, 1});
    const reference::Result64 result = forward_of(tensors);
    const double weight = std::exp(-20.75) / (1 + std::exp(-20.75));
    EXPECT_NEAR(result.out.value[0], weight, 1e-14);
    EXPECT_NEAR(result.out.low[0], half ? 0x1p-20 : weight, 1e-14);
  }
}

TEST(ReferenceForward, DropoutScalesWhatItKeepsAndLeavesLse) {
  CaseTensors tensors(parse_case("q=3 kv=8 d=2 dv=8 data=zeros dropout=0.5 seed=9"), Poison::off);
  set_values(tensors, Arg::v,
             [](const ElementIndex& at) { return at.row == at.column ? 1.0 : 0.0; });
  const reference::Result64 result = forward_of(tensors);
  const semantics::Dropout dropout = semantics::make_dropout(0.5, 9, 0);
  int kept = 0;
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(result.lse.value[static_cast<size_t>(i)], std::log(8.0));
    for (int64_t j = 0; j < 8; ++j) {
      const bool keeps = dropout.keeps(0, i, j);
      kept += keeps ? 1 : 0;
      EXPECT_DOUBLE_EQ(result.out.value[static_cast<size_t>(i * 8 + j)], keeps ? 0.25 : 0.0);
    }
  }
  EXPECT_GT(kept, 4);
  EXPECT_LT(kept, 20);
}

}  // namespace
}  // namespace tilewise::test
