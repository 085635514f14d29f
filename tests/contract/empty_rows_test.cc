// Contract rows "Rows with nothing to see": dead rows, empty sizes, one key, merging.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_plus_zero(const std::vector<double>& values, size_t first, size_t count) {
  for (size_t i = first; i < first + count; ++i) {
    ASSERT_TRUE(values[i] == 0 && !std::signbit(values[i])) << "element " << i << ": " << values[i];
  }
}

// q_len > kv_len under causal: the first q_len - kv_len rows see nothing, bit for bit.
TEST(EmptyRows, AreZeroWithLseMinusInfinity) {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    for_each_target([&](const Target& target) {
      CaseTensors tensors =
          fitted_tensors(target, "q=200 kv=50 d=9 dir=bwd mask=causal dtype=" + std::string(dtype));
      run_case(tensors, target);
      for (const Arg arg : given_of(tensors, {Arg::out, Arg::d_q})) {
        expect_plus_zero(values_of(tensors, arg), 0, static_cast<size_t>(150 * tensors.text().d));
      }
      const std::vector<double> lse = values_of(tensors, Arg::lse);
      for (size_t i = 0; i < 150; ++i) ASSERT_EQ(lse[i], -kInfinity) << i;
      for (size_t i = 150; i < 200; ++i) ASSERT_TRUE(std::isfinite(lse[i])) << i;
    });
  }
}

TEST(EmptyRows, OfEveryKind) {
  expect_all_match_everywhere({
      "q=200 kv=50 d=9 mask=causal",            // a dead tile and more
      "q=66 kv=65 d=9 mask=causal",             // one dead row at the start of a tile
      "q=129 kv=80 d=9 mask=window:5:2",        // band above the square
      "q=60 kv=70 d=9 mask=causal:-40",         // dead rows, keys nobody sees
      "q=60 kv=70 d=9 mask=window:3:3:200",     // every row is dead
      "q=60 kv=70 d=9 mask=window:3:3:-200",    // on the other side
      "q=60 kv=70 d=9 mask=window:0:0:30",      // dead rows at the end
      "q=70 kv=64 d=9 mask=causal sink=1 hq=4"  // dead rows with a sink
  });
}

// Replaces what dead rows (0..36) hold in q and dO.
void spoil_dead_rows(CaseTensors& tensors, double garbage) {
  for (const Arg arg : given_of(tensors, {Arg::q, Arg::d_out})) {
    const std::vector<double> before = values_of(tensors, arg);
    size_t next = 0;
    set_values(tensors, arg, [&](const ElementIndex& at) {
      const double value = before[next++];
      return at.row < 37 ? garbage : value;
    });
  }
}

// Nothing a dead row holds may reach a gradient: the same bits, and where NaN makes a kernel take
// its careful path, the same numbers.
TEST(EmptyRows, DoNotTouchOtherGradients) {
  const Case c = parse_case("hq=2 hkv=1 q=70 kv=33 d=9 dir=bwd mask=causal deterministic=1");
  for_each_target([&](const Target& target) {
    CaseTensors clean(target.fitted(c));
    CaseTensors dirty(target.fitted(c));
    spoil_dead_rows(dirty, 1e4);
    run_case(clean, target);
    run_case(dirty, target);
    for (const Arg arg : given_of(clean, {Arg::out, Arg::lse, Arg::d_q, Arg::d_k, Arg::d_v})) {
      EXPECT_EQ(values_of(clean, arg), values_of(dirty, arg)) << name_of(arg);
    }
  });
  for (const double garbage : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const Case& variant : variants_of(c)) {
      CaseTensors dirty(variant);
      spoil_dead_rows(dirty, garbage);
      expect_tensors_match(dirty);
    }
  }
}

TEST(EmptyRows, WithASinkHaveItsLse) {
  for_each_target([](const Target& target) {
    CaseTensors tensors = fitted_tensors(target, "hq=2 q=20 kv=4 d=9 sink=1 mask=causal");
    set_values(tensors, Arg::sink, {0.7f, -3.25f});
    run_case(tensors, target);
    const std::vector<double> lse = values_of(tensors, Arg::lse);
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(lse[2 * i], static_cast<double>(0.7f));
      EXPECT_EQ(lse[2 * i + 1], -3.25);
    }
    expect_plus_zero(values_of(tensors, Arg::out), 0,
                     static_cast<size_t>(16 * 2 * tensors.text().dv));
  });
}

TEST(EmptySizes, AreSuccessAndWriteWhatTheyOwn) {
  for (const char* sizes :
       {"b=0 q=5", "q=0 kv=9", "hq=0 q=5", "hq=0 hkv=3 q=5", "q=5 kv=0", "b=3 q=0 kv=0",
        "qlens=0,0,0", "qlens=5,0,7 kvlens=0,0,0", "qlens=0,0 kvlens=5,7",
        "qlens=3,4,5 kvlens=5,0,7", "qlens=0,9,0 kvlens=4,0,0", "b=2 hq=4 hkv=2 q=0 kv=4096"}) {
    for (const char* layout : {"bshd", "bhsd", "strided"}) {
      const std::string text = std::string(sizes) + " d=8 dv=5 layout=" + layout;
      expect_matches_reference(text);
      expect_matches_reference(text + " dir=bwd dtype=bf16");
      expect_matches_reference(text + " dir=bwd sink=1 dlse=1 mask=causal");
    }
  }
}

// kv_len = 0: out 0, LSE -inf, dQ 0. q_len = 0: dK and dV are zeros, never old bytes.
TEST(EmptySizes, GradientsAreZeros) {
  for_each_target([](const Target& target) {
    CaseTensors no_keys = fitted_tensors(target, "q=5 kv=0 d=8 dir=bwd");
    run_case(no_keys, target);
    for (const Arg arg : given_of(no_keys, {Arg::out, Arg::d_q})) {
      expect_plus_zero(values_of(no_keys, arg), 0, 40);
    }
    EXPECT_EQ(values_of(no_keys, Arg::lse), std::vector<double>(5, -kInfinity));
    if (!target.can_backward()) return;
    CaseTensors no_rows(parse_case("q=0 kv=6 d=8 dir=bwd sink=1"));
    run_case(no_rows, target);
    expect_plus_zero(values_of(no_rows, Arg::d_k), 0, 48);
    expect_plus_zero(values_of(no_rows, Arg::d_v), 0, 48);
    expect_plus_zero(values_of(no_rows, Arg::d_sink), 0, 1);
  });
}

// One visible key: out is v, dQ and dK are zero, dV is dO, whatever q and k hold.
TEST(OneKey, IsExact) {
  for (const double size : {1.0, 3.7, 1e3, 5e4, 133120.0}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      for_each_target([&](const Target& target) {
        CaseTensors tensors =
            fitted_tensors(target, "b=2 hq=3 q=1 kv=1 d=64 dir=bwd dtype=" + std::string(dtype));
        for (const Arg arg : {Arg::q, Arg::k, Arg::v}) {
          size_t next = 0;
          const std::vector<double> before = values_of(tensors, arg);
          set_values(tensors, arg, [&](const ElementIndex&) { return before[next++] * size; });
        }
        run_case(tensors, target);
        EXPECT_EQ(values_of(tensors, Arg::out), values_of(tensors, Arg::v)) << size;
        if (!target.can_backward()) return;
        EXPECT_EQ(values_of(tensors, Arg::d_v), values_of(tensors, Arg::d_out)) << size;
        EXPECT_EQ(values_of(tensors, Arg::d_q), std::vector<double>(384, 0.0)) << size;
        EXPECT_EQ(values_of(tensors, Arg::d_k), std::vector<double>(384, 0.0)) << size;
      });
      expect_matches_reference("q=40 kv=1 d=33 dir=bwd dtype=" + std::string(dtype));
    }
  }
}

// The reported case: q = k = v = 133120 everywhere in bf16.
TEST(OneKey, OfConstant133120IsExact) {
  for_each_target([](const Target& target) {
    CaseTensors tensors(parse_case("q=1 d=64 dtype=bf16"));
    for (const Arg arg : {Arg::q, Arg::k, Arg::v}) {
      set_values(tensors, arg, [](const ElementIndex&) { return 133120.0; });
    }
    run_case(tensors, target);
    EXPECT_EQ(values_of(tensors, Arg::out), std::vector<double>(64, 133120.0));
    EXPECT_FLOAT_EQ(static_cast<float>(values_of(tensors, Arg::lse)[0]),
                    static_cast<float>(133120.0 * 133120.0 * 8));
  });
}

// A score of -inf masks its key: without another one the row is empty.
TEST(OneKey, OfScoreMinusInfinityIsMasked) {
  for_each_target([](const Target& target) {
    CaseTensors tensors = fitted_tensors(target, "hq=2 q=3 kv=1 d=8");
    set_values(tensors, Arg::q, [](const ElementIndex&) { return 1.0; });
    set_values(tensors, Arg::k, [](const ElementIndex&) { return -INFINITY; });
    run_case(tensors, target);
    EXPECT_EQ(values_of(tensors, Arg::out), std::vector<double>(48, 0.0));
    EXPECT_EQ(values_of(tensors, Arg::lse), std::vector<double>(6, -INFINITY));
  });
}

// Backward too: with all scores -inf, no weight and no gradient of v.
TEST(EmptyRows, OfScoresMinusInfinityGiveNoGradientOfV) {
  for_each_target([](const Target& target) {
    if (!target.can_backward()) return;
    CaseTensors tensors = fitted_tensors(target, "hq=2 q=3 kv=5 d=8 dir=bwd");
    set_values(tensors, Arg::q, [](const ElementIndex&) { return 1.0; });
    set_values(tensors, Arg::k, [](const ElementIndex&) { return -INFINITY; });
    run_case(tensors, target);
    EXPECT_EQ(values_of(tensors, Arg::d_v), std::vector<double>(80, 0.0));
  });
}

// n identical keys of any size: the average of v, and LSE grows by log n.
TEST(OneKey, IdenticalKeysAverage) {
  for (const double size : {0.0, 1.0, 300.0, 60000.0}) {
    for (const int count : {2, 7, 64, 129}) {
      for_each_target([&](const Target& target) {
        CaseTensors tensors = fitted_tensors(target, "q=3 d=16 kv=" + std::to_string(count));
        const double roundoff = reference::unit_roundoff(tensors.text().dtype);
        set_values(tensors, Arg::q, [&](const ElementIndex&) { return size; });
        set_values(tensors, Arg::k, [&](const ElementIndex&) { return -size; });
        set_values(tensors, Arg::v, [](const ElementIndex& at) { return at.row % 2 == 0 ? 1 : 3; });
        run_case(tensors, target);
        const double average = 1 + 2.0 * (count / 2) / count;
        for (const double out : values_of(tensors, Arg::out)) {
          EXPECT_NEAR(out, average, 1e-6 + 2 * roundoff) << size << " x " << count;
        }
        const double stored = reference::round_to(tensors.text().dtype, size);
        const double lse = -4 * stored * stored + std::log(count);
        EXPECT_NEAR(values_of(tensors, Arg::lse)[0], lse, 1e-6 * (1 + std::fabs(lse)));
      });
    }
  }
}

// Forward over parts of the keys, merged, is forward over all of them.
TEST(Merge, OfPartsIsTheWhole) {
  for_each_target([](const Target& target) {
    if (target.on_device()) return;  // merge takes CPU tensors
    const ChosenIsa chosen(target);
    CaseTensors whole(parse_case("b=2 hq=4 hkv=2 q=50 kv=90 d=16 mask=causal"));
    CaseVerifier verifier(whole);
    const int64_t cuts[] = {0, 33, 33, 60, 90};  // one part has no keys
    std::vector<std::vector<float>> memory;
    std::vector<Partial> parts;
    for (int p = 0; p + 1 < 5; ++p) {
      Tensors call = whole.forward();
      for (Tensor* tensor : {&call.k, &call.v}) {
        tensor->data = static_cast<float*>(tensor->data) + cuts[p] * tensor->stride[1];
        tensor->size[1] = cuts[p + 1] - cuts[p];
      }
      memory.emplace_back(static_cast<size_t>(call.out.elements()));
      call.out = Tensor::bshd(memory.back().data(), DType::f32, 2, 50, 4, 16);
      memory.emplace_back(static_cast<size_t>(call.lse.elements()));
      call.lse = Tensor::contiguous(memory.back().data(), DType::f32, {2, 4, 50});
      Options options = whole.options();
      options.mask = Mask::causal_at(90 - 50 - cuts[p]);
      run_call(Direction::forward, call, options, target);
      parts.push_back({call.out, call.lse});
    }
    std::vector<float> out(2 * 50 * 4 * 16), lse(2 * 4 * 50);
    merge(parts, Tensor::bshd(out.data(), DType::f32, 2, 50, 4, 16),
          Tensor::contiguous(lse.data(), DType::f32, {2, 4, 50}));
    EXPECT_EQ(run_poisoned(Direction::forward, whole, target.backend), "");
    const std::vector<double> expected = values_of(whole, Arg::out);
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(out[i]), expected[i], 2e-6) << i;
    }
  });
}

}  // namespace
}  // namespace tilewise::test
