// Contract row "Behaviour": bits repeat while other calls contend for the same threads and caches.
// TILEWISE_REPEATS=1000 repeats each Case so often; the default is 8.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

constexpr const char* kRepeated[] = {
    "b=2 hq=4 hkv=2 q=100 kv=300 d=64 mask=causal",
    "hq=4 hkv=1 q=150 kv=700 d=128 dtype=bf16 mask=window:200:3 sink=1 alibi=1",
    "hq=3 qlens=40,0,1,65 kvlens=64,5,33,65 d=24 mask=causal dropout=0.2 dtype=fp16 sink=1",
    "hq=8 hkv=2 q=1 kv=3000 d=64 dtype=bf16", "hq=2 q=300 kv=900 d=96 softcap=20"};

int asked_repeats() {
  const char* const text = std::getenv("TILEWISE_REPEATS");
  return text == nullptr ? 8 : std::atoi(text);
}

// Fewer where everything takes longer.
int repeats(const Target& target) {
  const int asked = asked_repeats();
  return target.isa == targets().front().isa ? asked : std::max(2, asked / 10);
}

void run_both(const CaseTensors& tensors) {
  ASSERT_EQ(run_poisoned(Direction::forward, tensors, "cpu"), "");
  ASSERT_EQ(run_poisoned(Direction::backward, tensors, "cpu"), "");
}

// Callers that compute something else until the end of their life.
class Load {
 public:
  Load() {
    for (int i = 0; i < 3; ++i) {
      callers_.emplace_back([this, i] {
        const std::string text = "hq=3 q=65 kv=200 d=32 mask=causal dir=bwd seed=";
        const CaseTensors own(parse_case(text + std::to_string(i)));
        for (; !over_; ++calls_) run_both(own);
      });
    }
  }
  ~Load() {
    over_ = true;
    for (std::thread& caller : callers_) caller.join();
  }
  int calls() const { return calls_; }

 private:
  std::atomic<bool> over_ = false;
  std::atomic<int> calls_ = 0;
  std::vector<std::thread> callers_;
};

void expect_equal_bits(const std::string& text, int runs) {
  CaseTensors tensors(parse_case(text));
  run_both(tensors);
  const std::vector<std::byte> first = tensors.output_bytes();
  const Load load;
  while (load.calls() == 0) std::this_thread::yield();
  for (int run = 1; run < runs; ++run) {
    tensors.poison_outputs();
    run_both(tensors);
    ASSERT_EQ(tensors.output_bytes(), first) << text << " run " << run;
  }
}

TEST(Repeats, UnderLoadGiveTheSameBits) {
  ASSERT_GE(asked_repeats(), 2) << "TILEWISE_REPEATS must be a number of 2 or more";
  bool tested = false;
  for (const Target& target : targets()) {
    if (target.backend != "cpu") continue;
    tested = true;
    const ChosenIsa chosen(target);
    for (const int threads : {3, 1}) {
      set_num_threads(threads);
      for (const char* text : kRepeated) {
        expect_equal_bits(std::string(text) + " dir=bwd deterministic=1", repeats(target));
      }
    }
  }
  set_num_threads(0);
  if (!tested) GTEST_SKIP() << "the cpu backend is not tested here";
}

}  // namespace
}  // namespace tilewise::test
