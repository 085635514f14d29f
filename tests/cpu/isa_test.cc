// TILEWISE_ISA: each set this machine has can be forced; names it lacks are refused in words.
#include "cpu/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "cpu/machine.h"
#include "tests/targets.h"

namespace tilewise::cpu {
namespace {

TEST(Isa, ForcedSetsRun) {
  for (const std::string& name : available_isas()) {
    const test::ChosenIsa chosen({"cpu", name});
    std::string why_not;
    const Kernels* const kernels = choose_kernels(why_not);
    ASSERT_NE(kernels, nullptr) << why_not;
    EXPECT_EQ(kernels->name, name);
    EXPECT_EQ(kernels->width % kernels->lanes, 0);
    EXPECT_GT(measure_fma_peak(1), 1e8);
  }
}

TEST(Isa, UnknownNamesAreRefused) {
  const test::ChosenIsa chosen({"cpu", "avx9000"});
  std::string why_not;
  EXPECT_EQ(choose_kernels(why_not), nullptr);
  EXPECT_NE(why_not.find("TILEWISE_ISA is avx9000"), std::string::npos);
  EXPECT_NE(why_not.find("expected scalar, neon, neonbf16, avx2, avx512, avx512bf16 or amx"),
            std::string::npos);
  Tensors tensors;
  tensors.q = Tensor::bshd(nullptr, DType::f32, 1, 2, 1, 4);
  tensors.k = tensors.v = tensors.out = tensors.q;
  Options options;
  options.backend = "cpu";
  EXPECT_THROW(make_plan(Direction::forward, tensors, options), Error);
}

TEST(Isa, SetsThisMachineLacksAreRefused) {
  const auto& names = available_isas();
  for (const char* name : {"neon", "neonbf16", "avx2", "avx512", "avx512bf16", "amx"}) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const test::ChosenIsa chosen({"cpu", name});
    std::string why_not;
    EXPECT_EQ(choose_kernels(why_not), nullptr);
    EXPECT_EQ(why_not.find("TILEWISE_ISA is " + std::string(name) +
                           ", which this machine cannot run (it has " + names.front()),
              0u)
        << why_not;
  }
}

// 1.0 on processors whose units for both are alike, 3.5 and more where they are not.
TEST(Isa, TheFasterProductOfBf16GoesFirst) {
  using Names = std::vector<std::string>;
  const Names dots = {"amx", "avx512bf16", "avx512", "avx2", "scalar"};
  const Names floats = {"amx", "avx512", "avx512bf16", "avx2", "scalar"};
  for (const Names& before : {dots, floats}) {
    EXPECT_EQ(best_first(before, 1.0), dots);
    EXPECT_EQ(best_first(before, 1.59), dots);
    EXPECT_EQ(best_first(before, 1.6), floats);
    EXPECT_EQ(best_first(before, 4.1), floats);
  }
  const Names without = {"avx512", "avx2", "scalar"};
  EXPECT_EQ(best_first(without, 1.0), without);
}

TEST(Isa, APlanSaysHowBf16IsMultiplied) {
  const std::vector<int16_t> words(64);
  for (const std::string& name : available_isas()) {
    const test::ChosenIsa chosen({"cpu", name});
    Tensors tensors;
    // One row, which is too few for matrix tiles.
    tensors.q = Tensor::bshd(const_cast<int16_t*>(words.data()), DType::bf16, 1, 1, 1, 8);
    tensors.k = tensors.v = tensors.out = tensors.q;
    Options options;
    options.backend = "cpu";
    const std::string text = make_plan(Direction::forward, tensors, options).describe();
    const std::string products = name.ends_with("bf16") ? "of bf16 pairs" : "widened to float";
    EXPECT_NE(text.find("instruction set: " + name), std::string::npos) << text;
    EXPECT_NE(text.find("products: in vectors, " + products), std::string::npos) << text;
  }
}

TEST(Machine, IsDescribed) {
  const CpuMachine& machine = cpu_machine();
  EXPECT_FALSE(machine.isas.empty());
  EXPECT_EQ(machine.isas.back(), "scalar");
  EXPECT_GE(machine.cores, 1);
}

}  // namespace
}  // namespace tilewise::cpu
