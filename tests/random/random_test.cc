// Random Cases against float64 on every backend and instruction set. TILEWISE_RANDOM_CASES says how
// many, TILEWISE_SEED which, TILEWISE_RANDOM_KERNELS how many kernels of a GPU they may need
// (about; 0: any); a failure prints the command that reruns its Case alone.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "tests/case_expect.h"
#include "tests/random/random_case.h"

namespace tilewise::test {
namespace {

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Worst {
  double ratio = 0;
  std::string text;
};

class Tally {
 public:
  void add(const Verdict& verdict, const Case& c) {
    ++(verdict.supported ? taken_ : refused_);
    for (const TensorVerdict& tensor : verdict.tensors) {
      Worst& worst = worst_[std::string(name_of(c.dtype)) + " " + tensor.name];
      if (tensor.worst_ratio <= worst.ratio) continue;
      worst = {tensor.worst_ratio, print_case(c)};
    }
  }
  void print() const {
    std::printf("  %d cases taken, %d refused\n", taken_, refused_);
    for (const auto& [name, worst] : worst_) {
      std::printf("  worst error / bound of %-12s %.3f  %s\n", name.c_str(), worst.ratio,
                  worst.text.c_str());
    }
  }

 private:
  std::map<std::string, Worst> worst_;
  int taken_ = 0;
  int refused_ = 0;
};

// A kernel of the GPU takes seconds to make, so there many cases share few of them.
Case drawn_case(uint64_t seed, uint64_t number, uint64_t kernels) {
  const Case c = random_case(seed, number);
  if (kernels == 0) return c;
  const Target gpu{"gpu"};
  return like_kernel(gpu.fitted(c), gpu.fitted(random_case(seed, number % kernels)));
}

TEST(Random, CasesMatchTheReference) {
  ASSERT_EQ(why_no_target(judged_targets()), "");
  constexpr uint64_t kDefaultCases = 3000;
  constexpr int kMostFailures = 10;
  const uint64_t seed = number_from_environment("TILEWISE_SEED", std::random_device{}());
  const uint64_t count = number_from_environment("TILEWISE_RANDOM_CASES", kDefaultCases);
  const uint64_t kernels = number_from_environment("TILEWISE_RANDOM_KERNELS", 0);
  std::printf("TILEWISE_SEED=%llu, %llu cases\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(count));
  std::fflush(stdout);
  std::map<std::string, Tally> tallies;
  int failures = 0;
  for (uint64_t number = 0; number < count && failures < kMostFailures; ++number) {
    const Case c = drawn_case(seed, number, kernels);
    ASSERT_EQ(parse_case(print_case(c)), c) << print_case(c);
    CaseTensors tensors(c);
    CaseVerifier verifier(tensors);
    for (const Target& target : judged_targets()) {
      if (target.backend == "reference" && number % 20 != 0) continue;
      const ChosenIsa chosen(target);
      const Verdict verdict = verifier.verify(target.backend, target.farthest());
      tallies[target.name()].add(verdict, c);
      if (verdict.passed || target.may_refuse(verdict)) continue;
      ++failures;
      std::string text;
      for (const std::string& failure : verdict.failures) text += "\n  " + failure;
      ADD_FAILURE() << "case " << number << " of TILEWISE_SEED=" << seed << "\n"
                    << verdict.rerun << text;
    }
  }
  for (const auto& [name, tally] : tallies) {
    std::printf("%s\n", name.c_str());
    tally.print();
  }
}

}  // namespace
}  // namespace tilewise::test
