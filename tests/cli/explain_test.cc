// tilewise explain: the online softmax against numbers worked out by hand, sizes as text, which
// schedules a Case brings, and what the program prints.
#include "cli/explain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "cli/online_softmax.h"
#include "cli/tensor_file.h"

namespace tilewise::cli {
namespace {

std::string digits(const std::vector<double>& values, int count) {
  std::string text;
  for (const double value : values) {
    char number[32];
    std::snprintf(number, sizeof number, "%s%.*f", text.empty() ? "" : " ", count, value);
    text += number;
  }
  return text;
}

SoftmaxWalk walk(const std::string& scores) { return walk_softmax(parse_scores(scores)); }

TEST(OnlineSoftmax, PublishedToyRun) {
  const SoftmaxWalk w = walk("2,1|0,3");
  ASSERT_EQ(w.steps.size(), 2U);
  EXPECT_EQ(w.steps[0].new_max, 2);
  EXPECT_EQ(w.steps[1].new_max, 3);
  EXPECT_DOUBLE_EQ(w.steps[1].rescale, std::exp(-1.0));
  EXPECT_EQ(digits({w.steps[1].new_sum}, 3), "1.553");
  EXPECT_EQ(digits(w.weights, 4), "0.2369 0.0871 0.0321 0.6439");
  EXPECT_LT(w.largest_difference, 1e-15);
}

TEST(OnlineSoftmax, TwoBlocksOfTwo) {
  const SoftmaxWalk w = walk("1,3|2,5");
  EXPECT_EQ(digits({w.steps[0].new_sum}, 4), "1.1353");  // 1 + e^-2
  EXPECT_EQ(digits({w.steps[1].rescale}, 4), "0.1353");  // e^(3 - 5)
  EXPECT_EQ(digits({w.steps[1].new_sum}, 4), "1.2034");  // 1.1353 e^-2 + e^-3 + 1
  EXPECT_EQ(digits({w.steps[1].unscaled_sum}, 4), "2.1851");
  EXPECT_EQ(digits(w.weights, 4), "0.0152 0.1125 0.0414 0.8310");
  EXPECT_GT(w.unscaled_error, 0.3);
}

TEST(OnlineSoftmax, ForgettingTheRescaleHidesWhereTheMaximumComesFirst) {
  EXPECT_LT(walk("5,1|2,3|4").unscaled_error, 1e-15);
}

TEST(OnlineSoftmax, MaskedScores) {
  const SoftmaxWalk w = walk("-inf,-inf|1,-inf|-inf");
  EXPECT_EQ(digits(w.weights, 1), "0.0 0.0 1.0 0.0 0.0");
  EXPECT_EQ(w.steps[0].new_sum, 0);
  EXPECT_EQ(digits(walk("-inf|-inf").weights, 1), "0.0 0.0");
}

TEST(OnlineSoftmax, RefusesWhatIsNoScore) {
  for (const char* const text : {"", "1,", "1||2", "a", "nan", "inf", "1 2"}) {
    EXPECT_THROW(parse_scores(text), InputError) << text;
  }
  std::string many = "0";
  for (int i = 0; i < 64; ++i) many += ",0";
  EXPECT_THROW(parse_scores(many), InputError);
}

TEST(Explain, SizesAsText) {
  EXPECT_EQ(decimal_bytes_text(136314880), "136.3 MB");
  EXPECT_EQ(decimal_bytes_text(34359738368), "34.4 GB");
  EXPECT_EQ(decimal_bytes_text(0), "0 B");
  EXPECT_EQ(decimal_bytes_text(999999), "1.0 MB");
  EXPECT_EQ(grouped(16777216), "16,777,216");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(parse_bytes("192K", "--sram"), 192 * 1024);
  EXPECT_EQ(parse_bytes("1.5MiB", "--sram"), 1.5 * 1024 * 1024);
  EXPECT_EQ(parse_bytes("65536", "--sram"), 65536);
  for (const char* const text : {"", "K", "3Z", "-1", "0", "inf"}) {
    EXPECT_THROW(parse_bytes(text, "--sram"), InputError) << text;
  }
}

TEST(Explain, ShapeOfACase) {
  const AttentionShape dense = shape_of(parse_case("b=2 hq=8 hkv=2 q=5 kv=7 d=16 dv=32"));
  EXPECT_EQ(dense.batch, 2);
  EXPECT_EQ(dense.q_heads, 8);
  EXPECT_EQ(dense.kv_heads, 2);
  EXPECT_EQ(dense.value_dim, 32);
  const AttentionShape packed = shape_of(parse_case("qlens=3,0 kvlens=4,5 d=8"));
  ASSERT_EQ(packed.sequences.size(), 2U);
  EXPECT_EQ(packed.sequences[1].kv_len, 5);
}

TEST(Explain, DecodeIsFewRows) {
  const AttentionShape decode = shape_of(parse_case("q=1 kv=4096 d=64"));
  EXPECT_EQ(tiled_schedule(decode, false, Accounting::full), Schedule::decode);
  const AttentionShape prefill = shape_of(parse_case("q=4096 d=64"));
  EXPECT_EQ(tiled_schedule(prefill, false, Accounting::full), Schedule::tiled_q_outside);
  EXPECT_EQ(tiled_schedule(prefill, true, Accounting::full), Schedule::recompute_backward);
}

std::string output_of(const std::string& arguments, int* status = nullptr) {
  std::FILE* pipe = ::popen(("'" TILEWISE_PROGRAM "' " + arguments + " 2>&1").c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  const int result = ::pclose(pipe);
  if (status != nullptr) *status = result;
  return text;
}

TEST(Explain, WithoutACaseShowsThePublishedFigures) {
  const std::string text = output_of("explain");
  for (const char* const part :
       {"16,777,216", "32.0 MiB", "136.3 MB", "26.2 MB", "5.2 times less", "541.1 MB", "102.8 MB",
        "14.3 us", "68.2 us", "13.1 us", "does 150 operations", "does 1.25"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(Explain, ShortSequencesAndDecodeHaveLittleToGain) {
  for (const char* const words :
       {"\"hq=16 q=512 d=64 dtype=bf16\"", "\"b=4 hq=32 hkv=8 q=1 kv=32768 d=128 dtype=bf16\""}) {
    EXPECT_NE(output_of("explain " + std::string(words)).find("Little to gain"), std::string::npos)
        << words;
  }
}

TEST(Explain, MistakesAreOneLine) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"--machine h10", "expected example, a100, h100 or h200"},
      {"--sram 3Z", "\"3Z\" is no size"},
      {"--sram 64", "one row and one key take"},
      {"--scores 1,x", "\"x\" is no score"},
      {"--scores ''", "\"\" is no score"},
      {"--flops 0", "machine.flops_per_s is 0"},
      {"'q=4 d=4' 'q=5 d=5'", "2 Cases, expected one"},
      {"q=4 d=0", "head_dim"}};
  for (const auto& [arguments, message] : mistakes) {
    int status = 0;
    const std::string text = output_of("explain " + std::string(arguments), &status);
    EXPECT_NE(status, 0) << arguments;
    EXPECT_NE(text.find(message), std::string::npos) << arguments << "\n" << text;
    EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
  }
}

}  // namespace
}  // namespace tilewise::cli
