// The pool: every task once, workers never shared, concurrent callers, nested calls, forks, the
// caller's executor; and results that do not depend on the number of threads.
#include "cpu/threads.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "case/case.h"
#include "case/case_tensors.h"
#include "case/verify.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cpu {
namespace {

void expect_each_task_once(int64_t tasks, int workers) {
  std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
  std::vector<std::atomic<int>> inside(static_cast<size_t>(workers));
  parallel_for(tasks, workers, [&](int64_t task, int worker) {
    ASSERT_LT(worker, workers);
    EXPECT_EQ(inside[static_cast<size_t>(worker)].fetch_add(1), 0);
    runs[static_cast<size_t>(task)].fetch_add(1);
    inside[static_cast<size_t>(worker)].fetch_sub(1);
  });
  for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
}

TEST(Threads, RunEveryTaskOnce) {
  for (int workers : {1, 2, 3, 8}) {
    for (int64_t tasks : {0, 1, 2, 7, 1000}) expect_each_task_once(tasks, workers);
  }
}

TEST(Threads, ServeConcurrentCallers) {
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([] {
      for (int round = 0; round < 50; ++round) expect_each_task_once(20, 3);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(Threads, ServeACallFromInsideATask) {
  std::atomic<int> runs{0};
  parallel_for(4, 3,
               [&](int64_t, int) { parallel_for(5, 3, [&](int64_t, int) { runs.fetch_add(1); }); });
  EXPECT_EQ(runs.load(), 20);
}

#if !defined(__SANITIZE_THREAD__)
TEST(Threads, WorkInTheChildOfAFork) {
  expect_each_task_once(100, 3);
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> runs{0};
    parallel_for(100, 3, [&](int64_t, int) { runs.fetch_add(1); });
    _exit(runs.load() == 100 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

TEST(Threads, RunOnTheCallersExecutor) {
  static int calls = 0;
  calls = 0;
  set_executor({nullptr, [](void*, int workers, void (*body)(void*, int), void* argument) {
                  for (int w = workers - 1; w >= 0; --w) body(argument, w);
                  ++calls;
                }});
  expect_each_task_once(100, 3);
  set_executor({});
  expect_each_task_once(100, 3);
  EXPECT_EQ(calls, 1);
}

TEST(Threads, AreChosenAndRestored) {
  const int before = num_threads();
  EXPECT_GE(before, 1);
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  set_num_threads(0);
  EXPECT_EQ(num_threads(), before);
}

std::vector<std::byte> output_of(const std::string& text, int threads) {
  CaseTensors tensors(parse_case(text));
  set_num_threads(threads);
  EXPECT_EQ(run_poisoned(Direction::forward, tensors, "cpu"), "");
  if (tensors.text().dir == Direction::backward) {
    EXPECT_EQ(run_poisoned(Direction::backward, tensors, "cpu"), "");
  }
  set_num_threads(0);
  return tensors.output_bytes();
}

TEST(Threads, DoNotChangeABit) {
  for (const char* text :
       {"b=2 hq=6 hkv=2 q=300 kv=900 d=48 mask=causal dir=bwd",
        "hq=2 q=150 kv=2500 d=128 dv=64 dtype=bf16 dropout=0.1 dir=bwd",
        "hq=4 hkv=1 qlens=70,0,300 kvlens=1200,5,40 d=32 mask=window:100:20 sink=1 dir=bwd",
        "q=1 kv=5000 d=32", "hq=12 hkv=2 q=7 kv=5000 d=32 mask=causal dropout=0.1 sink=1"}) {
    const auto one = output_of(text, 1);
    for (int threads : {2, 3, 7}) EXPECT_EQ(output_of(text, threads), one) << text;
  }
}

}  // namespace
}  // namespace tilewise::cpu
