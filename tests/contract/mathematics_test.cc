// Contract rows "Mathematics": scale, causal, window, softcap, GQA, V width, ALiBi, sink, dropout,
// LSE and its gradient, on every backend and instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

TEST(Mathematics, Scale) {
  expect_all_match_everywhere({"q=33 kv=70 d=20", "q=33 kv=70 d=20 scale=1",
                               "q=33 kv=70 d=20 scale=0.001", "q=9 kv=20 d=8 scale=40"});
}

TEST(Mathematics, CausalAlignments) {
  for (const char* sizes : {"q=70 kv=70", "q=40 kv=130", "q=130 kv=40", "q=1 kv=65"}) {
    for (const char* mask : {"causal", "causal_top_left", "causal:3", "causal:-5", "causal:64"}) {
      const std::string text = std::string(sizes) + " d=16 mask=" + mask;
      expect_matches_reference(text);
      expect_matches_reference(text + " dir=bwd");
    }
  }
}

TEST(Mathematics, Windows) {
  for (const char* mask :
       {"window:0:0", "window:5:0", "window:0:5", "window:63:0", "window:64:1", "window:-1:2",
        "window:2:-1", "window_top_left:7:3", "window:9:1:-20", "window:1:1:50",
        "window:2147483647:0", "window:9223372036854775807:9223372036854775807"}) {
    const std::string text = "q=90 kv=140 d=12 mask=" + std::string(mask);
    expect_matches_reference(text);
    expect_matches_reference(text + " dir=bwd dtype=bf16");
  }
}

// S = tile + 1 with windows around the edge of a tile.
TEST(Mathematics, WindowsAroundTileEdges) {
  for (const int size : {33, 65, 129, 257}) {
    for (const int window : {size - 3, size - 2, size - 1, size, size / 2}) {
      expect_matches_reference("q=" + std::to_string(size) +
                               " d=8 mask=window:" + std::to_string(window) + ":0");
      expect_matches_reference("q=" + std::to_string(size) + " d=8 dir=bwd mask=window:" +
                               std::to_string(window) + ":" + std::to_string(window));
    }
  }
}

TEST(Mathematics, Softcap) {
  expect_all_match_everywhere({"q=33 kv=70 d=16 softcap=30", "q=33 kv=70 d=16 softcap=0.5",
                               "q=3 kv=5 d=16 softcap=1.5 mask=causal",
                               "q=20 kv=40 d=16 softcap=50 data=large"});
  // Blocks of tiny, middling and large scores take different ways on the GPU, and meet in one row.
  expect_all_match_everywhere({"q=70 kv=400 d=64 softcap=50", "q=70 kv=400 d=64 softcap=8",
                               "q=70 kv=400 d=128 softcap=8 mask=causal data=outlier",
                               "q=70 kv=400 d=64 softcap=50 scale=1e-18",
                               "q=70 kv=400 d=64 softcap=1e-12"});
}

TEST(Mathematics, GroupedHeads) {
  expect_all_match_everywhere(
      {"hq=2 hkv=1 q=20 kv=40 d=8", "hq=6 hkv=3 q=20 kv=40 d=8", "hq=7 hkv=1 q=20 kv=40 d=8",
       "hq=71 hkv=1 q=3 kv=9 d=8", "hq=142 hkv=2 q=3 kv=9 d=4 mask=causal",
       "b=2 hq=8 hkv=2 q=17 d=64 dv=128", "b=2 hq=6 hkv=3 q=17 d=64 dv=128 mask=causal"});
}

// Each row sees one key, so out is the very row of v: a wrong address names itself.
TEST(Mathematics, ValueCodedRowsFindTheirPlace) {
  for (const char* text :
       {"b=3 hq=6 hkv=2 q=70 d=5 dv=9", "b=3 hq=6 hkv=2 q=70 d=9 layout=bhsd",
        "b=3 hq=6 hkv=2 q=70 d=9 layout=packed_qkv", "hq=6 hkv=2 qlens=70,0,33,5 d=5 dv=9",
        "b=3 hq=6 hkv=2 q=70 d=5 dv=9 layout=strided seed=8"}) {
    for_each_target([&](const Target& target) {
      if (target.on_device()) return;  // the codes need fp32
      CaseTensors tensors(parse_case(std::string(text) + " mask=window:0:0"));
      set_values(tensors, Arg::v, [](const ElementIndex& at) {
        return static_cast<double>(((at.sequence * 128 + at.row) * 4 + at.head) * 16 + at.column);
      });
      run_case(tensors, target);
      const std::vector<double> out = values_of(tensors, Arg::out);
      size_t next = 0;
      for_each_element(
          tensors.text(), Arg::out, tensors.forward().out, [&](int64_t, const ElementIndex& at) {
            const int64_t code = ((at.sequence * 128 + at.row) * 4 + at.head / 3) * 16 + at.column;
            ASSERT_EQ(out[next++], static_cast<double>(code)) << text_of(at);
          });
    });
  }
}

TEST(Mathematics, ValueWidthDiffersFromHeadWidth) {
  for (const int d : {1, 8, 64, 128, 256}) {
    for (const int dv : {1, 8, 64, 200, 256}) {
      const std::string dims = " d=" + std::to_string(d) + " dv=" + std::to_string(dv);
      expect_matches_reference("q=18 kv=35 dir=bwd mask=causal" + dims);
    }
  }
}

TEST(Mathematics, Alibi) {
  expect_all_match_everywhere({"hq=4 q=30 kv=70 d=8 alibi=1", "b=2 hq=4 q=30 kv=70 d=8 alibi=2",
                               "hq=4 q=70 kv=30 d=8 alibi=1 mask=causal",
                               "hq=4 q=1 kv=70 d=8 alibi=1 mask=causal",
                               "hq=4 q=30 kv=70 d=8 alibi=1 mask=causal_top_left",
                               "hq=2 qlens=20,0,7 kvlens=31,4,9 d=8 alibi=2 mask=causal"});
}

// off = 3: row 0 stands at key 3, row 1 at key 4. Weights 2^-distance.
TEST(Mathematics, AlibiDistancesOfTwoByFive) {
  for_each_target([](const Target& target) {
    CaseTensors tensors = fitted_tensors(target, "q=2 kv=5 d=1 dv=5 alibi=1 data=zeros");
    const double roundoff = reference::unit_roundoff(tensors.text().dtype);
    const auto columns = static_cast<size_t>(tensors.text().dv);
    set_values(tensors, Arg::alibi_slopes, {std::log(2.0)});
    set_values(tensors, Arg::v,
               [](const ElementIndex& at) { return at.row == at.column ? 1.0 : 0.0; });
    run_case(tensors, target);
    const std::vector<double> out = values_of(tensors, Arg::out);
    const double weights[] = {0.125, 0.25, 0.5, 1, 0.5, 0.0625, 0.125, 0.25, 0.5, 1};
    for (size_t i = 0; i < 10; ++i) {
      const double sum = i < 5 ? 2.375 : 1.9375;
      EXPECT_NEAR(out[i / 5 * columns + i % 5], weights[i] / sum, 1e-6 + roundoff) << i;
    }
  });
}

// Scores 1, 3, 2, 5 by hand, as two tiles of two would see them.
TEST(Mathematics, OnlineSoftmaxByHand) {
  for_each_target([](const Target& target) {
    CaseTensors tensors = fitted_tensors(target, "q=1 kv=4 d=1 scale=1");
    set_first_column(tensors, Arg::q, {1});
    set_first_column(tensors, Arg::k, {1, 3, 2, 5});
    set_first_column(tensors, Arg::v, {1, 2, 3, 4});
    run_case(tensors, target);
    const double roundoff = reference::unit_roundoff(tensors.text().dtype);
    EXPECT_NEAR(values_of(tensors, Arg::lse)[0], 5.185182452603812, 2e-6);
    EXPECT_NEAR(values_of(tensors, Arg::out)[0], 3.688056589144707, 2e-6 + 8 * roundoff);
  });
}

TEST(Mathematics, Sink) {
  expect_all_match_everywhere({"hq=5 q=30 kv=70 d=8 sink=1",
                               "hq=5 q=70 kv=30 d=8 sink=1 mask=causal",
                               "hq=4 hkv=2 b=2 q=20 d=8 sink=1 mask=window:3:0",
                               "hq=3 qlens=9,0,20 kvlens=0,5,30 d=8 sink=1"});
}

TEST(Mathematics, SinkOfMinusInfinityIsNone) {
  for_each_target([](const Target& target) {
    const std::string text = "hq=3 q=20 kv=30 d=8 dir=bwd deterministic=1";
    CaseTensors plain = fitted_tensors(target, text);
    CaseTensors sunk = fitted_tensors(target, text + " sink=1");
    set_values(sunk, Arg::sink,
               [](const ElementIndex&) { return -std::numeric_limits<double>::infinity(); });
    run_case(plain, target);
    run_case(sunk, target);
    for (const Arg arg : given_of(plain, {Arg::out, Arg::lse, Arg::d_q, Arg::d_k, Arg::d_v})) {
      EXPECT_EQ(values_of(plain, arg), values_of(sunk, arg)) << name_of(arg);
    }
    if (!target.can_backward()) return;
    EXPECT_EQ(values_of(sunk, Arg::d_sink), std::vector<double>(3, 0.0));
  });
}

TEST(Mathematics, Dropout) {
  expect_all_match_everywhere({"hq=2 q=40 kv=70 d=8 dropout=0.1", "hq=2 q=40 kv=70 d=8 dropout=0.9",
                               "b=2 hq=4 hkv=2 q=33 d=8 dropout=0.5 mask=causal dropout_offset=7",
                               "hq=2 qlens=20,0,7 kvlens=31,4,9 d=8 dropout=0.3 sink=1",
                               "q=70 d=8 dropout=0.999 seed=18446744073709551615"});
}

TEST(Mathematics, DropoutLeavesLseAlone) {
  for_each_target([](const Target& target) {
    CaseTensors with = fitted_tensors(target, "hq=2 q=40 kv=70 d=8 seed=3 dropout=0.5");
    CaseTensors without = fitted_tensors(target, "hq=2 q=40 kv=70 d=8 seed=3");
    run_case(with, target);
    run_case(without, target);
    EXPECT_EQ(values_of(with, Arg::lse), values_of(without, Arg::lse));
    EXPECT_NE(values_of(with, Arg::out), values_of(without, Arg::out));
  });
}

TEST(Mathematics, LseGradient) {
  expect_all_match({"hq=2 q=40 kv=70 d=8 dir=bwd dlse=1",
                    "hq=2 q=70 kv=40 d=8 dir=bwd dlse=1 mask=causal sink=1",
                    "hq=2 q=40 kv=1 d=8 dir=bwd dlse=1",  // rows with one key
                    "hq=2 q=40 kv=40 d=8 dir=bwd dlse=1 mask=causal",
                    "hq=2 qlens=20,0,7 kvlens=31,4,0 d=8 dir=bwd dlse=1 sink=1 dtype=bf16",
                    "hq=2 q=40 kv=70 d=8 dir=bwd dlse=1 softcap=2 dropout=0.2 alibi=1"});
}

TEST(Mathematics, EverythingAtOnce) {
  expect_all_match_everywhere(
      {"b=2 hq=6 hkv=2 q=67 kv=131 d=40 dv=24 mask=window:50:3 softcap=3 alibi=2 sink=1 "
       "dropout=0.2 scale=0.3 layout=strided seed=12",
       "hq=6 hkv=2 qlens=40,0,65,1 kvlens=80,9,64,0 d=40 dv=24 mask=causal softcap=3 alibi=1 "
       "sink=1 dropout=0.2 layout=strided seed=13"});
}

// An accepted option changes the result: nothing is silently ignored.
TEST(Mathematics, EveryOptionChangesTheResult) {
  const std::string base = "b=2 hq=4 hkv=2 q=70 kv=90 d=16 dtype=bf16 dir=bwd deterministic=1 ";
  for_each_target([&](const Target& target) {
    CaseTensors plain = fitted_tensors(target, base);
    run_case(plain, target);
    for (const char* option : {"mask=causal", "mask=causal_top_left", "mask=causal:5",
                               "mask=window:30:-1", "mask=window:-1:10", "scale=0.4", "softcap=1",
                               "alibi=1", "alibi=2", "sink=1", "dropout=0.1"}) {
      CaseTensors changed = fitted_tensors(target, base + option);
      run_case(changed, target);
      for (const Arg arg : given_of(plain, {Arg::out, Arg::d_q, Arg::d_k, Arg::d_v})) {
        EXPECT_NE(values_of(plain, arg), values_of(changed, arg))
            << option << " did not change " << name_of(arg);
      }
    }
    CaseTensors dropped = fitted_tensors(target, base + "dropout=0.1");
    CaseTensors offset = fitted_tensors(target, base + "dropout=0.1 dropout_offset=1");
    run_case(dropped, target);
    run_case(offset, target);
    EXPECT_NE(values_of(dropped, Arg::out), values_of(offset, Arg::out));
    if (!target.can_backward()) return;
    CaseTensors d_lse(parse_case(base + "dlse=1"));
    run_case(d_lse, target);
    EXPECT_NE(values_of(plain, Arg::d_q), values_of(d_lse, Arg::d_q));
  });
}

}  // namespace
}  // namespace tilewise::test
