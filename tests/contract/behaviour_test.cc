// Contract rows "Behaviour": repeatable bits, threads, workspace, plans, subsets of gradients, and
// bad calls that change nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>

#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

constexpr const char* kRepeated[] = {
    "b=2 hq=4 hkv=2 q=70 kv=131 d=40 mask=causal",
    "hq=4 hkv=1 q=129 d=16 mask=window:40:3 dtype=bf16 sink=1 alibi=1",
    "hq=3 qlens=40,0,1,65 kvlens=64,5,33,65 d=24 mask=causal dropout=0.2 dtype=fp16 sink=1",
    "hq=8 hkv=2 q=1 kv=600 d=64 mask=causal",
};

// A hundred on the instruction set that runs by default, fewer where everything takes longer.
int repeats(const Target& target) {
  if (target.backend == "reference") return 2;
  return target.isa == targets().front().isa ? 100 : 10;
}

class DefaultThreads {
 public:
  ~DefaultThreads() { set_num_threads(0); }
};

TEST(Determinism, AHundredRunsGiveTheSameBits) {
  for (const char* text : kRepeated) {
    for_each_target([&](const Target& target) {
      const int runs = repeats(target);
      CaseTensors tensors = fitted_tensors(target, std::string(text) + " dir=bwd deterministic=1");
      run_case(tensors, target);
      const std::vector<std::byte> first = tensors.output_bytes();
      for (int run = 1; run < runs; ++run) {
        tensors.poison_outputs();
        run_case(tensors, target);
        ASSERT_EQ(tensors.output_bytes(), first) << text << " run " << run;
      }
    });
  }
}

TEST(Determinism, ForwardRepeatsWithoutAsking) {
  for (const char* text : kRepeated) {
    for_each_target([&](const Target& target) {
      const int runs = repeats(target);
      CaseTensors tensors = fitted_tensors(target, text);
      run_case(tensors, target);
      const std::vector<std::byte> first = tensors.output_bytes();
      for (int run = 1; run < runs; ++run) {
        tensors.poison_outputs();
        run_case(tensors, target);
        ASSERT_EQ(tensors.output_bytes(), first) << text << " run " << run;
      }
    });
  }
}

// CPU results do not depend on the thread count, whether asked to be deterministic or not.
TEST(Determinism, ThreadCountChangesNoBit) {
  const DefaultThreads restore;
  for (const char* text : kRepeated) {
    for (const char* asked : {"", " deterministic=1"}) {
      for_each_target([&](const Target& target) {
        if (target.backend == "reference" || target.on_device()) return;
        CaseTensors tensors(parse_case(std::string(text) + " dir=bwd" + asked));
        set_num_threads(1);
        run_case(tensors, target);
        const std::vector<std::byte> first = tensors.output_bytes();
        for (const int threads : {2, 3, 4, 7, 16}) {
          set_num_threads(threads);
          tensors.poison_outputs();
          run_case(tensors, target);
          ASSERT_EQ(tensors.output_bytes(), first) << text << " threads " << threads;
        }
      });
    }
  }
}

// Threads from one to more than there are cores, on a long problem.
TEST(Threads, AnyNumberMatchesTheReference) {
  const DefaultThreads restore;
  for (const int threads : {1, 2, 3, 5, 8, 33}) {
    set_num_threads(threads);
    expect_matches_reference("hq=3 q=400 d=16 mask=causal dir=bwd deterministic=1");
    expect_matches_reference("hq=1 q=1 kv=3000 d=32");
  }
}

// An executor that runs the workers one after the other, last first.
TEST(Threads, AForeignExecutorGivesTheSameBits) {
  for_each_target([](const Target& target) {
    if (target.on_device()) return;  // runs no CPU work
    CaseTensors tensors(parse_case("b=2 hq=4 q=70 kv=131 d=16 dir=bwd mask=causal"));
    run_case(tensors, target);
    const std::vector<std::byte> first = tensors.output_bytes();
    Executor backwards;
    backwards.run = [](void*, int workers, void (*body)(void*, int), void* argument) {
      for (int w = workers - 1; w >= 0; --w) body(argument, w);
    };
    set_executor(backwards);
    tensors.poison_outputs();
    run_case(tensors, target);
    set_executor({});
    EXPECT_EQ(tensors.output_bytes(), first);
  });
}

TEST(Threads, ConcurrentCallsOnDifferentTensors) {
  for_each_target([](const Target& target) {
    const std::string text = "hq=4 hkv=2 q=65 kv=90 d=16 dir=bwd mask=causal deterministic=1 seed=";
    constexpr int kCallers = 4;
    std::vector<std::unique_ptr<CaseTensors>> tensors;
    std::vector<std::vector<std::byte>> expected;
    for (int i = 0; i < kCallers; ++i) {
      const Case c = target.fitted(parse_case(text + std::to_string(i)));
      tensors.push_back(std::make_unique<CaseTensors>(c));
      run_case(*tensors.back(), target);
      expected.push_back(tensors.back()->output_bytes());
    }
    const ChosenIsa chosen(target);
    for (int repeat = 0; repeat < 10; ++repeat) {
      std::vector<std::thread> callers;
      for (const auto& own : tensors) {
        own->poison_outputs();
        callers.emplace_back([&own, &target] {
          EXPECT_EQ(run_poisoned(Direction::forward, *own, target.backend), "");
          if (!target.can_backward()) return;
          EXPECT_EQ(run_poisoned(Direction::backward, *own, target.backend), "");
        });
      }
      for (std::thread& caller : callers) caller.join();
      for (size_t i = 0; i < tensors.size(); ++i) {
        ASSERT_EQ(tensors[i]->output_bytes(), expected[i]) << "caller " << i;
      }
    }
  });
}

// All fifteen subsets of the gradients: those wanted are right, the others are not touched.
TEST(Gradients, EverySubset) {
  const char* const names[] = {"dq", "dk", "dv", "dsink"};
  for (int subset = 1; subset < 16; ++subset) {
    std::string want;
    for (int bit = 0; bit < 4; ++bit) {
      if ((subset >> bit & 1) != 0) want += (want.empty() ? "" : ",") + std::string(names[bit]);
    }
    for (const char* rest : {" dtype=fp32", " dtype=bf16 mask=causal layout=packed_qkv"}) {
      expect_matches_reference("b=2 hq=4 hkv=2 q=33 d=16 dir=bwd sink=1 want=" + want + rest);
    }
  }
}

// One plan serves any tensors of its shapes, with a workspace full of anything.
TEST(Plans, AreReusable) {
  for_each_target([](const Target& target) {
    if (target.on_device()) return;  // tests/gpu runs plans on device memory
    const ChosenIsa chosen(target);
    const std::string text = "hq=4 hkv=2 q=65 kv=90 d=16 dir=bwd mask=causal deterministic=1 seed=";
    CaseTensors first(parse_case(text + "1"));
    CaseTensors second(parse_case(text + "2"));
    run_case(second, target);
    const std::vector<std::byte> expected = second.output_bytes();
    second.poison_outputs();
    Options options = first.options();
    options.backend = target.backend;
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      const bool forwards = direction == Direction::forward;
      const Plan plan =
          make_plan(direction, forwards ? first.forward() : first.backward(), options);
      const Plan copy = plan;  // cheap, and as good
      const PoisonedWorkspace workspace(plan.workspace_bytes());
      for (const CaseTensors* tensors : {&first, &second, &first}) {
        copy.run(forwards ? tensors->forward() : tensors->backward(), workspace.data(),
                 workspace.bytes());
      }
    }
    EXPECT_EQ(second.output_bytes(), expected);
  });
}

TEST(Plans, RefuseATooSmallWorkspaceBeforeAnythingIsWritten) {
  for_each_target([](const Target& target) {
    if (target.on_device()) return;
    const ChosenIsa chosen(target);
    CaseTensors tensors(parse_case("hq=2 q=65 kv=90 d=16 dir=bwd"));
    const std::vector<std::byte> untouched = tensors.output_bytes();
    Options options = tensors.options();
    options.backend = target.backend;
    const Plan plan = make_plan(Direction::backward, tensors.backward(), options);
    if (plan.workspace_bytes() == 0) return;
    const PoisonedWorkspace workspace(plan.workspace_bytes());
    try {
      plan.run(tensors.backward(), workspace.data(), workspace.bytes() - 1);
      ADD_FAILURE() << "ran with a workspace that is one byte too small";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::workspace_too_small) << error.what();
    }
    EXPECT_EQ(tensors.output_bytes(), untouched);
  });
}

}  // namespace
}  // namespace tilewise::test
