// tilewise profile: the advice for made-up measurements, and that the program runs. Nothing here
// depends on how fast this machine is.
#include "cli/profile.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "cli/neighbours.h"

namespace tilewise::cli {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

MachineRoofs made_up_machine() {
  MachineRoofs machine;
  machine.flops_per_s = 200e9;
  machine.bytes_per_s = 20e9;
  machine.exps_per_s = 10e9;
  machine.fast_bytes = 512 << 10;
  machine.cache_bytes = 32 << 20;
  return machine;
}

Profile made_up(const std::string& text, double standard_s, double tiled_s, double rest_s) {
  Profile p;
  p.threads = 1;
  p.roofs.machine = made_up_machine();
  p.main.text = parse_case(text);
  p.main.shape = shape_of(p.main.text);
  p.main.standard = {"standard attention", "standard", "", {standard_s, 0, 0, 1}, 1e9, 64 << 20,
                     Schedule::standard,   {}};
  p.main.tiled = {"Tilewise",
                  "cpu",
                  "",
                  {tiled_s, 0, 0, 1},
                  1e9,
                  1 << 20,
                  tiled_schedule(p.main.shape, false, Accounting::full),
                  {}};
  for (ProfiledPath* const path : {&p.main.standard, &p.main.tiled}) {
    path->model = cost(p.main.shape, {path->schedule}, p.roofs.machine);
  }
  p.layer = {4096, 11008, rest_s};
  return p;
}

void expect_advice(const Profile& profile, Verdict verdict, const std::vector<std::string>& parts) {
  const Advice advice = advice_of(profile);
  EXPECT_EQ(name_of(advice.verdict), name_of(verdict)) << advice.text;
  for (const std::string& part : parts) EXPECT_TRUE(has(advice.text, part)) << advice.text;
}

TEST(Advice, LongAndMemoryBound) {
  expect_advice(made_up("hq=8 q=4096 d=64", 0.4, 0.2, 0.4), Verdict::worth_it,
                {"Worth it: Tilewise is 2.0 times as fast and attention is 50 % of a layer at "
                 "n = 4096, so the layer takes 25 % less time",
                 "1.00 MiB of extra memory instead of 64.0 MiB"});
}

TEST(Advice, SmallPartOfALayer) {
  expect_advice(made_up("hq=8 q=512 d=64", 0.03, 0.015, 0.97), Verdict::little_to_gain,
                {"Little to gain in time: Tilewise is 2.0 times as fast, but at n = 512 attention "
                 "is 3.0 % of the time a layer takes: it will not matter"});
}

// However fast Tilewise is beside the standard backend: there is no matrix.
TEST(Advice, Decode) {
  const Profile twice = made_up("hq=8 q=1 kv=8192 d=64", 0.004, 0.002, 0.0001);
  expect_advice(twice, Verdict::little_to_gain,
                {"Little to gain from tiling: with so few rows there is no large matrix, and k and "
                 "v must be read in any case, 33.6 MB at n = 8192",
                 "Tilewise is 2.0 times as fast as the standard backend all the same, because it "
                 "reaches 84 % of what the roofs allow and that one 42 %"});
  const Profile equal = made_up("hq=8 q=1 kv=8192 d=64", 0.002, 0.002, 0.0001);
  expect_advice(equal, Verdict::little_to_gain, {"k and v must be read in any case"});
  EXPECT_FALSE(has(advice_of(equal).text, "all the same"));
}

TEST(Advice, LongAndComputeBound) {
  expect_advice(made_up("hq=8 q=4096 d=256", 1.0, 0.95, 0.1), Verdict::little_to_gain,
                {"Tilewise is 1.05 times as fast, because standard attention is compute-bound here "
                 "already"});
  expect_advice(made_up("hq=8 q=4096 d=256", 2.0, 1.0, 0.1), Verdict::little_to_gain,
                {"Little to gain from tiling in time: the roofs allow 1.08 times, because standard "
                 "attention is compute-bound here already (1.00 MiB of extra memory instead of "
                 "64.0 MiB)",
                 "Tilewise is 2.0 times as fast as the standard backend all the same, because it "
                 "reaches 69 % of what the roofs allow and that one 37 %"});
}

TEST(Advice, ShortFitsIntoTheCache) {
  expect_advice(made_up("hq=8 q=256 d=64", 1.0, 0.95, 0.1), Verdict::little_to_gain,
                {"the matrix, 2.00 MiB, fits into the cache"});
  expect_advice(made_up("hq=8 q=512 d=64", 0.008, 0.004, 0.001), Verdict::little_to_gain,
                {"the roofs allow 1.08 times, because the matrix, 8.00 MiB, fits into the cache"});
}

// What the model promises and the measurement does not show is said.
TEST(Advice, NotFasterThoughTheRoofsAllowIt) {
  expect_advice(made_up("hq=8 q=4096 d=64", 0.4, 0.39, 0.4), Verdict::little_to_gain,
                {"Tilewise is 1.03 times as fast, because of the 1.3 times that the roofs allow it "
                 "reaches 44 %"});
}

TEST(Advice, FarFromTheRoof) {
  EXPECT_TRUE(
      has(advice_of(made_up("hq=8 q=1 kv=8192 d=64", 20, 10, 0.1)).text, "Both could be faster"));
  EXPECT_FALSE(
      has(advice_of(made_up("hq=8 q=4096 d=64", 0.4, 0.2, 0.4)).text, "Both could be faster"));
}

TEST(Advice, WhatDidNotRun) {
  Profile p = made_up("q=4096 d=64", 1, 1, 1);
  p.main.standard.why_not = "it needs 32 GiB";
  expect_advice(p, Verdict::not_compared, {"Standard attention was not run (it needs 32 GiB)"});
  expect_advice(made_up("q=4 kv=0 d=4", 1, 1, 1), Verdict::not_compared, {"Nothing to compute"});
}

TEST(Neighbours, AreNotNegative) { EXPECT_GE(Neighbours().busy_cores(), 0); }

std::string output_of(const std::string& arguments, int& status) {
  std::FILE* pipe = ::popen(("'" TILEWISE_PROGRAM "' " + arguments + " 2>&1").c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  status = ::pclose(pipe);
  return text;
}

TEST(Profile, RunsForwardBackwardAndWhatStandardCannot) {
  for (const char* const words :
       {"hq=2 q=64 d=16", "q=40 d=16 dir=bwd mask=causal", "qlens=5,9 d=8", "q=1 kv=64 d=8"}) {
    int status = -1;
    const std::string text = output_of("profile -r 1 --threads 1 " + std::string(words), status);
    EXPECT_EQ(status, 0) << text;
    for (const char* const part :
         {"roofs", "standard attention", "Tilewise", "bound by", "layer"}) {
      EXPECT_TRUE(has(text, part)) << part << "\n" << text;
    }
  }
}

// The verdict on decode does not depend on what the clock says.
TEST(Profile, DecodeIsNeverWorthIt) {
  int status = -1;
  const std::string text =
      output_of("profile -r 1 --threads 1 --json hq=2 q=1 kv=2048 d=64", status);
  EXPECT_EQ(status, 0) << text;
  EXPECT_TRUE(has(text, "\"verdict\": \"little to gain\"")) << text;
  EXPECT_TRUE(has(text, "k and v must be read in any case, 2.1 MB at n = 2048")) << text;
}

}  // namespace
}  // namespace tilewise::cli
