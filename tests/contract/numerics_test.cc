// Extreme numbers: huge and tiny scores, long uniform rows, limits of fp16; the literal inputs of
// public bug reports.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

// Every raw score is `score`; softmax does not see the shift, so out is the average of v.
void expect_shift_invariant(const std::string& sizes, double score) {
  for_each_target([&](const Target& target) {
    const Case c = target.fitted(parse_case(sizes + " scale=1"));
    CaseTensors tensors(c);
    // One column carries the score, so that it is exact.
    set_values(tensors, Arg::q, [](const ElementIndex& at) { return at.column == 0 ? 1.0 : 0.0; });
    set_values(tensors, Arg::k,
               [&](const ElementIndex& at) { return at.column == 0 ? score : 5.0; });
    set_values(tensors, Arg::v, [](const ElementIndex& at) { return 1.0 + at.row % 2; });
    run_case(tensors, target);
    const double stored = reference::round_to(c.dtype, score);
    const double average = 1 + static_cast<double>(c.kv / 2) / static_cast<double>(c.kv);
    for (const double out : values_of(tensors, Arg::out)) ASSERT_NEAR(out, average, 1e-2) << score;
    const double lse = stored + std::log(static_cast<double>(c.kv));
    for (const double got : values_of(tensors, Arg::lse)) {
      ASSERT_NEAR(got, lse, 1e-6 * std::fabs(lse) + 1e-6) << score;
    }
  });
}

// A finite stand-in for -inf (-5e4, -1e4, ...) turns such rows into zeros. Scores count up to
// 2^127: kernels hold them times log2(e) in float32 (docs/numerics.md).
TEST(Numerics, ScoresFarBelowAnySentinel) {
  for (const double score : {-5.1e4, -2.45e5, -524288.0, -6e5, -1e30, -1.7e38, 6e5, 1.7e38}) {
    for (const int keys : {1, 2, 64, 65}) {
      const std::string kv = " kv=" + std::to_string(keys);
      expect_shift_invariant("hq=8 hkv=2 q=3 d=128" + kv, score);
      expect_shift_invariant("q=33 d=16 dtype=bf16" + kv, score);
    }
  }
}

TEST(Numerics, LargeAndOutlyingData) {
  for (const char* data : {"large", "outlier", "equal", "zeros"}) {
    const std::string text = "hq=2 hkv=1 q=70 kv=140 d=64 data=" + std::string(data);
    expect_all_match_everywhere({text, text + " mask=causal", text + " mask=window:40:0 sink=1"});
  }
}

// fp16 accumulators overflow here: 65536 uniform keys of value 60000.
TEST(Numerics, LongUniformRowsOfLargeHalfValues) {
  for_each_target([](const Target& target) {
    for (const double value : {60000.0, 0x1p-22}) {
      CaseTensors tensors = fitted_tensors(target, "q=3 kv=65536 d=8 dv=4 dtype=fp16 data=zeros");
      set_values(tensors, Arg::v, [&](const ElementIndex&) { return value; });
      run_case(tensors, target);
      for (const double out : values_of(tensors, Arg::out)) {
        ASSERT_NEAR(out, reference::round_to(DType::f16, value), value * 1e-3);
      }
    }
  });
}

TEST(Numerics, LongUniformRowsStayWithinTheBound) {
  expect_all_match({"q=2 kv=20000 d=4 data=zeros", "q=2 kv=20000 d=4 data=equal",
                    "q=2 kv=20000 d=1 dv=1 scale=0.01", "q=2 kv=20000 d=4 dtype=bf16 data=zeros"});
}

TEST(Numerics, DecodeLengthsAroundATile) {
  for (int keys = 255; keys <= 258; ++keys) {
    expect_matches_reference("q=1 d=32 dtype=bf16 kv=" + std::to_string(keys));
    expect_matches_reference("hq=8 hkv=2 q=1 d=64 mask=causal kv=" + std::to_string(keys));
  }
  for (int keys = 1; keys < 700; keys += 37) {
    expect_matches_reference("b=2 hq=4 hkv=1 q=1 d=16 mask=causal kv=" + std::to_string(keys));
  }
}

// Four ways to say the same mask.
TEST(Numerics, EqualMasksAgree) {
  for_each_target([](const Target& target) {
    if (target.backend == "reference") return;
    const std::string sizes = "q=1024 d=8 mask=";
    std::vector<std::vector<double>> outs;
    for (const char* mask : {"causal", "window:1024:0", "window:1023:0", "causal_top_left",
                             "window:2147483647:0", "causal:0"}) {
      CaseTensors tensors = fitted_tensors(target, sizes + mask);
      const double roundoff = reference::unit_roundoff(tensors.text().dtype);
      run_case(tensors, target);
      outs.push_back(values_of(tensors, Arg::out));
      for (size_t i = 0; i < outs[0].size(); ++i) {
        const double close = 2e-6 + 4 * roundoff * std::fabs(outs[0][i]);
        ASSERT_NEAR(outs.back()[i], outs[0][i], close) << mask << " " << i;
      }
    }
  });
  expect_all_match({"q=1100 d=16 mask=causal", "q=1100 d=16 mask=window:1099:0 dir=bwd"});
}

}  // namespace
}  // namespace tilewise::test
