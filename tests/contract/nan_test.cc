// Contract rows "NaN, Inf, garbage": visible NaN must show, invisible bits must not.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Choice = std::function<bool(const ElementIndex&)>;

// Writes `value` to the chosen elements of an input.
void put(CaseTensors& tensors, Arg arg, double value, const Choice& chosen) {
  const std::vector<double> before = values_of(tensors, arg);
  size_t next = 0;
  set_values(tensors, arg, [&](const ElementIndex& at) {
    const double old = before[next++];
    return chosen(at) ? value : old;
  });
}

// NaN in one element: it must stand in the results exactly where float64 has it.
void expect_nan_stands(const std::string& text, Arg arg, const ElementIndex& where, double value) {
  for (const Case& c : variants_of(parse_case(text))) {
    CaseTensors tensors(c);
    if (given_of(tensors, {arg}).empty()) continue;
    put(tensors, arg, value, [&](const ElementIndex& at) {
      return at.sequence == where.sequence && at.row == where.row && at.head == where.head &&
             at.column == where.column;
    });
    SCOPED_TRACE(std::string(name_of(arg)) + text_of(where) + " = " + std::to_string(value));
    expect_tensors_match(tensors);
  }
}

constexpr const char* kMasks[] = {"none", "causal", "window:20:0", "window:5:5"};

TEST(Nan, InQReachesItsRowOnly) {
  for (const char* mask : kMasks) {
    for (const char* dtype : {"fp32", "bf16", "fp16"}) {
      const std::string text =
          "b=2 hq=2 q=70 kv=150 d=9 dir=bwd mask=" + std::string(mask) + " dtype=" + dtype;
      for (const int64_t row : {0, 13, 69}) expect_nan_stands(text, Arg::q, {1, row, 1, 3}, kNan);
    }
  }
}

TEST(Nan, InKReachesTheRowsThatSeeIt) {
  for (const char* mask : kMasks) {
    for (const char* dtype : {"fp32", "bf16", "fp16"}) {
      const std::string text =
          "b=2 hq=2 q=70 kv=150 d=9 dir=bwd mask=" + std::string(mask) + " dtype=" + dtype;
      for (const int64_t key : {0, 77, 100, 149}) {
        expect_nan_stands(text, Arg::k, {1, key, 1, 8}, kNan);
      }
    }
  }
}

TEST(Nan, InVReachesItsColumnInTheRowsThatSeeIt) {
  for (const char* mask : kMasks) {
    for (const char* dtype : {"fp32", "bf16", "fp16"}) {
      const std::string text =
          "b=2 hq=2 q=70 kv=150 d=9 mask=" + std::string(mask) + " dtype=" + dtype;
      for (const int64_t key : {0, 77, 100, 149}) {
        expect_nan_stands(text, Arg::v, {1, key, 1, 8}, kNan);
        expect_nan_stands(text + " dir=bwd", Arg::v, {1, key, 1, 8}, kNan);
      }
    }
  }
}

TEST(Nan, InDOutReachesItsRowAndTheKeysItSees) {
  for (const char* mask : kMasks) {
    const std::string text = "b=2 hq=2 q=70 kv=150 d=9 dir=bwd mask=" + std::string(mask);
    for (const int64_t row : {0, 13, 69}) {
      expect_nan_stands(text, Arg::d_out, {1, row, 1, 3}, kNan);
      expect_nan_stands(text + " dtype=bf16", Arg::d_out, {0, row, 0, 8}, kNan);
    }
  }
}

TEST(Nan, InfinityInVShowsAsInfinity) {
  for (const double value : {kInfinity, -kInfinity}) {
    expect_nan_stands("q=20 kv=50 d=9", Arg::v, {0, 7, 0, 2}, value);
    expect_nan_stands("q=20 kv=50 d=9 mask=causal dtype=bf16", Arg::v, {0, 40, 0, 2}, value);
  }
}

TEST(Nan, InfinityInQReachesItsRowOnly) {
  for (const char* mask : kMasks) {
    const std::string text = "b=2 hq=2 q=70 kv=150 d=9 dtype=bf16 mask=" + std::string(mask);
    for (const double value : {kInfinity, -kInfinity}) {
      expect_nan_stands(text, Arg::q, {1, 13, 1, 3}, value);
    }
  }
}

// Dropped weights are still weights of visible keys; options must not launder NaN.
TEST(Nan, IsNotLaunderedByOptions) {
  for (const char* options :
       {"softcap=2", "dropout=0.5", "alibi=1", "sink=1", "softcap=5 sink=1"}) {
    const std::string text = "q=20 kv=50 d=9 hq=4 mask=causal " + std::string(options);
    expect_nan_stands(text, Arg::q, {0, 7, 2, 1}, kNan);
    expect_nan_stands(text, Arg::k, {0, 33, 2, 1}, kNan);
    expect_nan_stands(text, Arg::v, {0, 33, 2, 1}, kNan);
  }
}

// Keys nobody sees may hold anything: the results are the same bits.
TEST(Garbage, InInvisibleKeysChangesNothing) {
  struct Hidden {
    const char* text;
    int64_t first;  // keys from here on are invisible to every row
  };
  const Hidden hidden[] = {{"q=40 kv=150 d=9 mask=causal_top_left", 40},
                           {"q=40 kv=150 d=9 mask=causal:7", 47},
                           {"q=1 kv=97 d=9 mask=causal_top_left", 1},
                           {"q=40 kv=150 d=9 mask=window_top_left:5:64", 104}};
  for (const Hidden& h : hidden) {
    for (const double garbage : {kNan, kInfinity, -kInfinity, 65504.0}) {
      for (const char* dtype : {"fp32", "bf16", "fp16"}) {
        const Case c = parse_case(std::string(h.text) + " dir=bwd deterministic=1 dtype=" + dtype);
        for_each_target([&](const Target& target) {
          CaseTensors clean(target.fitted(c));
          CaseTensors dirty(target.fitted(c));
          for (const Arg arg : {Arg::k, Arg::v}) {
            put(dirty, arg, garbage, [&](const ElementIndex& at) { return at.row >= h.first; });
          }
          run_case(clean, target);
          run_case(dirty, target);
          for (const Arg arg :
               given_of(clean, {Arg::out, Arg::lse, Arg::d_q, Arg::d_k, Arg::d_v})) {
            EXPECT_EQ(values_of(clean, arg), values_of(dirty, arg))
                << h.text << " " << name_of(arg) << " " << garbage;
          }
        });
      }
    }
  }
}

// Two keys, the masked one scoring far higher: the visible one takes all.
TEST(Garbage, AHugeMaskedScoreNeverWins) {
  for_each_target([](const Target& target) {
    for (const double masked : {1e3, 1e30, kInfinity, kNan}) {
      CaseTensors tensors = fitted_tensors(target, "q=1 kv=2 d=1 mask=causal_top_left scale=1");
      set_first_column(tensors, Arg::q, {-20000});
      set_first_column(tensors, Arg::k, {1, -masked});
      set_first_column(tensors, Arg::v, {1, 100});
      run_case(tensors, target);
      EXPECT_EQ(values_of(tensors, Arg::out)[0], 1) << masked;
      const double score = values_of(tensors, Arg::q)[0];
      const double rounding = target.on_device() ? 0x1p-22 * std::fabs(score) : 0.0;
      EXPECT_NEAR(values_of(tensors, Arg::lse)[0], score, rounding) << masked;
    }
  });
}

// Rows of a packed batch past its end, gaps and margins are poison in every test; here the tails
// run over all the lengths a tile can leave over.
TEST(Garbage, BehindEveryTailLengthStaysOut) {
  for (int tail = 1; tail <= 130; ++tail) {
    const std::string lens = std::to_string(tail);
    const char* dtype = tail % 3 == 0 ? "fp32" : tail % 3 == 1 ? "bf16" : "fp16";
    expect_matches_reference("qlens=2," + lens + " kvlens=" + lens + ",3 d=8 dtype=" + dtype);
    expect_matches_reference("q=5 kv=" + lens + " d=7 dir=bwd layout=strided seed=" + lens +
                             " dtype=" + dtype);
  }
}

}  // namespace
}  // namespace tilewise::test
