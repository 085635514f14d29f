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

TEST(Advice, WorthIt) {
  const std::string advice = advice_of(made_up("hq=8 q=4096 d=64", 0.4, 0.2, 0.4));
  EXPECT_TRUE(has(advice,
                  "Worth it: Tilewise is 2.0 times as fast and attention is 50 % of a layer "
                  "at n = 4096, so the layer takes 25 % less time"))
      << advice;
  EXPECT_TRUE(has(advice, "1.00 MiB of extra memory instead of 64.0 MiB")) << advice;
}

TEST(Advice, SmallPartOfALayer) {
  const std::string advice = advice_of(made_up("hq=8 q=512 d=64", 0.03, 0.015, 0.97));
  EXPECT_TRUE(has(advice,
                  "Little to gain in time: Tilewise is 2.0 times as fast, but at n = 512 "
                  "attention is 3.0 % of the time a layer takes"))
      << advice;
}

TEST(Advice, NotFaster) {
  EXPECT_TRUE(has(advice_of(made_up("hq=8 q=256 d=64", 1.0, 0.95, 0.1)), "fits into the cache"));
  EXPECT_TRUE(has(advice_of(made_up("hq=8 q=1 kv=8192 d=64", 1.0, 0.95, 0.1)),
                  "k and v must be read in any case"));
  EXPECT_TRUE(has(advice_of(made_up("hq=8 q=4096 d=256", 1.0, 0.95, 0.1)),
                  "standard attention is compute-bound here already"));
}

TEST(Advice, FarFromTheRoof) {
  EXPECT_TRUE(
      has(advice_of(made_up("hq=8 q=1 kv=8192 d=64", 20, 10, 0.1)), "Both could be faster"));
  EXPECT_FALSE(has(advice_of(made_up("hq=8 q=4096 d=64", 0.4, 0.2, 0.4)), "Both could be faster"));
}

TEST(Advice, WhatDidNotRun) {
  Profile p = made_up("q=4096 d=64", 1, 1, 1);
  p.main.standard.why_not = "it needs 32 GiB";
  EXPECT_TRUE(has(advice_of(p), "Standard attention was not run (it needs 32 GiB)"));
  EXPECT_TRUE(has(advice_of(made_up("q=4 kv=0 d=4", 1, 1, 1)), "Nothing to compute"));
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

}  // namespace
}  // namespace tilewise::cli
