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
  EXPECT_NE(why_not.find("expected scalar, neon, avx2, avx512 or amx"), std::string::npos);
  Tensors tensors;
  tensors.q = Tensor::bshd(nullptr, DType::f32, 1, 2, 1, 4);
  tensors.k = tensors.v = tensors.out = tensors.q;
  Options options;
  options.backend = "cpu";
  EXPECT_THROW(make_plan(Direction::forward, tensors, options), Error);
}

TEST(Isa, SetsThisMachineLacksAreRefused) {
  const auto& names = available_isas();
  for (const char* name : {"neon", "avx2", "avx512", "amx"}) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const test::ChosenIsa chosen({"cpu", name});
    std::string why_not;
    EXPECT_EQ(choose_kernels(why_not), nullptr);
    EXPECT_NE(why_not.find("cannot run"), std::string::npos) << why_not;
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
