// tilewise profile: the advice for made-up measurements, and that the program runs. Nothing here
// depends on how fast this machine is.
#include "cli/profile.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "case/case_tensors.h"
#include "case/device_mirror.h"
#include "cli/neighbours.h"
#include "device.h"

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

TEST(Profile, OnADevice) {
  int status = -1;
  const std::string refused = output_of("profile --device tpu q=64 d=8", status);
  EXPECT_NE(status, 0);
  EXPECT_TRUE(has(refused, "\"tpu\" is neither cpu nor cuda")) << refused;
  if (device_count() > 0) return;
  const std::string missing = output_of("profile --device cuda q=64 d=8 dtype=bf16", status);
  EXPECT_NE(status, 0);
  EXPECT_TRUE(has(missing, "no NVIDIA driver")) << missing;
}

// A GPU's matrix is as wide as its inputs; rows of JSON come back the same.
TEST(Profile, RowsOfADeviceComeBack) {
  Profile p = made_up("hq=8 q=4096 d=64 dtype=bf16", 0.4, 0.2, 0.4);
  p.threads = 0;
  p.roofs.machine.name = "a GPU";
  add_models(p.main, p.roofs.machine, true);
  EXPECT_EQ(p.main.standard.model.matrix_bytes, 8.0 * 4096 * 4096 * 2);
  p.advice = advice_of(p);
  const Profile read = read_profile(profile_rows(p), "here");
  EXPECT_TRUE(read.on_device());
  EXPECT_EQ(machine_text(read), "a GPU");
  EXPECT_EQ(read.main.standard.model.matrix_bytes, p.main.standard.model.matrix_bytes);
  EXPECT_NEAR(read.main.tiled.model.passes_s, p.main.tiled.model.passes_s, 1e-9);
  EXPECT_EQ(read.advice.text, p.advice.text);
  EXPECT_EQ(name_of(read.advice.verdict), "worth it");
}

// Why the baseline cannot do a Case whose tensors are said to be on a GPU; "" where it can.
std::string why_no_baseline(const std::string& text, bool on_device) {
  const Case c = parse_case(text);
  const CaseTensors tensors(c, Poison::off);
  Options options = tensors.options();
  options.backend = "gpu_standard";
  const Tensors& call = c.dir == Direction::backward ? tensors.backward() : tensors.forward();
  try {
    make_plan(c.dir, on_device ? as_device_tensors(call) : call, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(GpuStandard, SaysWhatItCannotDo) {
  const std::pair<const char*, const char*> refused[] = {
      {"q=8 d=8 dtype=bf16 dir=bwd", "standard attention on a GPU has no backward"},
      {"q=8 d=8", "has no fp32: bf16 or fp16"},
      {"qlens=3,5 d=8 dtype=bf16", "takes no packed batches"},
      {"q=8 d=8 dtype=bf16 softcap=3", "has no softcap"},
      {"q=8 d=8 dtype=bf16 alibi=1", "has no ALiBi"},
      {"q=8 d=8 dtype=bf16 sink=1", "has no sink"},
      {"q=8 d=8 dtype=bf16 dropout=0.5", "has no dropout"},
      {"q=1 kv=32769 d=1 dtype=bf16", "takes at most 32768 keys"},
      {"q=1 kv=0 d=1 dtype=bf16", "takes no empty tensors"},
      {"hq=65536 q=1 d=1 dtype=bf16", "takes at most 65535 heads and entries"}};
  for (const auto& [text, reason] : refused) {
    EXPECT_TRUE(has(why_no_baseline(text, true), reason)) << text << why_no_baseline(text, true);
  }
  EXPECT_TRUE(has(why_no_baseline("q=8 d=8 dtype=bf16", false), "the tensors are in host memory"));
  if (device_count() > 0) return;
  EXPECT_TRUE(has(why_no_baseline("q=8 d=8 dtype=bf16", true), "no NVIDIA driver"));
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
