// Plans: which backend is chosen, what refuses, what a plan says of itself, and the rules that need
// pointers (src/plan.cc, src/check_tensors.cc).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "problem.h"
#include "tilewise/tilewise.hpp"

namespace tilewise {
namespace {

// b=2 hq=2 hkv=1 q=3 kv=4 d=8 dv=4, fp32, dense, with gradients.
class PlanTest : public testing::Test {
 protected:
  PlanTest() {
    t.q = add(2, 3, 2, 8);
    t.k = add(2, 4, 1, 8);
    t.v = add(2, 4, 1, 4);
    t.out = add(2, 3, 2, 4);
    t.lse = Tensor::contiguous(memory.data() + used, DType::f32, {2, 2, 3});
    used += 12;
  }
  Tensor add(int64_t b, int64_t s, int64_t h, int64_t d) {
    const Tensor tensor = Tensor::bshd(memory.data() + used, DType::f32, b, s, h, d);
    used += static_cast<size_t>(b * s * h * d);
    return tensor;
  }
  void add_gradients() {
    t.d_out = add(2, 3, 2, 4);
    t.d_q = add(2, 3, 2, 8);
    t.d_k = add(2, 4, 1, 8);
    t.d_v = add(2, 4, 1, 4);
  }
  // The text of what running `tensors` on a plan for `t` throws.
  std::string run_error(const Tensors& tensors, Direction direction = Direction::forward) {
    const Plan plan = make_plan(direction, t);
    std::vector<std::byte> raw(plan.workspace_bytes() + 64);
    void* workspace = raw.data();
    size_t space = raw.size();
    std::align(64, plan.workspace_bytes(), workspace, space);
    try {
      plan.run(tensors, workspace, plan.workspace_bytes());
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  std::vector<float> memory = std::vector<float>(4096, 0.5f);
  size_t used = 0;
  Tensors t;
};

TEST_F(PlanTest, ChoosesTheCpuAndSaysSo) {
  const Plan plan = make_plan(Direction::forward, t);
  EXPECT_EQ(plan.backend(), "cpu");
  EXPECT_EQ(plan.describe().rfind("backend: cpu\n", 0), 0u) << plan.describe();
  EXPECT_NE(plan.describe().find("workspace: " + std::to_string(plan.workspace_bytes())),
            std::string::npos);
}

// q here: 3 rows of 2 heads that share a kv head.
TEST_F(PlanTest, SaysHowManyHeadsShareATile) {
  setenv("TILEWISE_ISA", "scalar", 1);
  EXPECT_NE(make_plan(Direction::forward, t).describe().find("query heads a tile: 2\n"),
            std::string::npos);
  unsetenv("TILEWISE_ISA");
}

TEST_F(PlanTest, TakesTheNamedBackend) {
  for (const char* name : {"cpu", "standard", "reference"}) {
    Options options;
    options.backend = name;
    EXPECT_EQ(make_plan(Direction::forward, t, options).backend(), name);
  }
  setenv("TILEWISE_BACKEND", "reference", 1);
  EXPECT_EQ(make_plan(Direction::forward, t).backend(), "reference");
  setenv("TILEWISE_BACKEND", "abacus", 1);
  try {
    make_plan(Direction::forward, t);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("(from TILEWISE_BACKEND)"), std::string::npos)
        << error.what();
  }
  unsetenv("TILEWISE_BACKEND");
}

TEST_F(PlanTest, RefusesWithEveryBackendsReasons) {
  for (Tensor Tensors::*field :
       {&Tensors::q, &Tensors::k, &Tensors::v, &Tensors::out, &Tensors::lse}) {
    (t.*field).device = {DeviceType::cuda, 0};
  }
  try {
    make_plan(Direction::forward, t);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    const std::string text = error.what();
    EXPECT_EQ(text.find("tilewise::forward: unsupported: no backend can do this\n"), 0u) << text;
    for (const char* name : {"\n  cpu: ", "\n  standard: ", "\n  reference: "}) {
      EXPECT_NE(text.find(name), std::string::npos) << text;
    }
  }
}

TEST_F(PlanTest, AnswersWhyNot) {
  bool cpu_can = false;
  for (const BackendAnswer& answer : why_not(Direction::forward, t)) {
    if (answer.backend == "cpu") cpu_can = answer.reasons.empty();
  }
  EXPECT_TRUE(cpu_can);
}

// One key, told with the stride of rows that a cache would suffer from: no plan looks at it.
TEST_F(PlanTest, StridesOfSizeOneChangeNothing) {
  t.k = add(2, 1, 1, 8);
  t.v = add(2, 1, 1, 1);
  t.out = add(2, 3, 2, 1);
  const std::string plain = make_plan(Direction::forward, t).describe();
  t.k.stride[1] = t.v.stride[1] = 1024;
  t.k.stride[2] = -1;
  t.v.stride[3] = 7;
  EXPECT_EQ(make_plan(Direction::forward, t).describe(), plain);
  const Problem problem = make_problem(Direction::forward, t, {});
  EXPECT_EQ(problem.layout(Arg::k).stride, (std::array<int64_t, kMaxDims>{8, 0, 0, 1}));
  EXPECT_EQ(problem.layout(Arg::v).stride, (std::array<int64_t, kMaxDims>{1, 0, 0, 1}));
  t.k.stride[1] = 8;
  t.k.size[1] = t.v.size[1] = 2;
  EXPECT_NE(make_plan(Direction::forward, t).describe(), plain) << "the stride of a size of 2";
}

// GPU kernels are chosen by what the pointers are multiples of.
TEST_F(PlanTest, KnowsTheAlignmentItWasMadeFor) {
  alignas(16) static float aligned[8];
  t.q.data = t.k.data = t.v.data = t.out.data = aligned;
  EXPECT_EQ(alignment_of(t), 16);
  EXPECT_EQ(make_problem(Direction::forward, t, {}).alignment, 16);
  t.v.data = aligned + 1;
  EXPECT_EQ(make_problem(Direction::forward, t, {}).alignment, 4);
  t.k.data = reinterpret_cast<char*>(aligned) + 2;
  EXPECT_EQ(alignment_of(t), 2);
  EXPECT_EQ(alignment_of(Tensors{}), 16) << "planned without data";
}

TEST_F(PlanTest, RefusesABadWorkspaceBeforeItRuns) {
  const Plan plan = make_plan(Direction::forward, t);
  ASSERT_GT(plan.workspace_bytes(), 0u);
  std::vector<std::byte> raw(plan.workspace_bytes() + 128);
  const std::vector<float> before = memory;
  const auto message = [&](void* workspace, size_t bytes) -> std::string {
    try {
      plan.run(t, workspace, bytes);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string needed = std::to_string(plan.workspace_bytes());
  EXPECT_EQ(message(raw.data(), 1), "tilewise::forward: workspace is 1 bytes, expected at least " +
                                        needed + " (from Plan::workspace_bytes)");
  EXPECT_EQ(message(nullptr, plan.workspace_bytes()),
            "tilewise::forward: workspace is null, expected a 64-byte aligned pointer");
  void* odd = raw.data();
  size_t space = raw.size();
  std::align(64, plan.workspace_bytes() + 1, odd, space);
  EXPECT_EQ(message(static_cast<std::byte*>(odd) + 1, plan.workspace_bytes()),
            "tilewise::forward: workspace is not 64-byte aligned, expected a 64-byte aligned "
            "pointer");
  EXPECT_EQ(memory, before);
}

TEST_F(PlanTest, RunRefusesOtherTensors) {
  Tensors other = t;
  other.lse = {};
  EXPECT_EQ(run_error(other),
            "tilewise::forward: lse is not given, expected a tensor (from the plan)");
  other = t;
  other.k.stride[1] += 8;
  EXPECT_EQ(run_error(other),
            "tilewise::forward: k is of another dtype, device, shape or stride, expected the "
            "layout it was planned with (from the plan)");
  other = t;
  other.v.data = nullptr;
  EXPECT_EQ(run_error(other), "tilewise::forward: v.data is null, expected a pointer");
  other = t;
  other.q.data = reinterpret_cast<std::byte*>(t.q.data) + 2;
  EXPECT_EQ(run_error(other),
            "tilewise::forward: q.data is not aligned to its elements, expected a multiple of 4 "
            "bytes (from q.dtype)");
}

TEST_F(PlanTest, RunRefusesOverlappingOutputs) {
  Tensors other = t;
  other.out.data = t.q.data;
  EXPECT_EQ(run_error(other),
            "tilewise::forward: out is overlapping q, expected memory of its own (from it is an "
            "output)");
  add_gradients();
  other = t;
  other.d_v.data = static_cast<float*>(t.d_k.data) + 1;
  const std::string text = run_error(other, Direction::backward);
  EXPECT_NE(text.find("expected memory of its own"), std::string::npos) << text;
}

// d_q, d_k and d_v as slices of one buffer [b, s, 3, h, d]: their ranges meet, elements do not.
TEST_F(PlanTest, RunTakesInterleavedGradients) {
  std::vector<float> packed(2 * 3 * 3 * 2 * 8, 0.25f);
  std::vector<float> gradient(packed.size(), NAN);
  const auto slice = [](std::vector<float>& buffer, int which) {
    Tensor tensor = Tensor::bshd(buffer.data() + which * 16, DType::f32, 2, 3, 2, 8);
    tensor.stride = {3 * 48, 48, 8, 1};
    return tensor;
  };
  t.q = slice(packed, 0);
  t.k = slice(packed, 1);
  t.v = slice(packed, 2);
  t.out = add(2, 3, 2, 8);
  forward(t);
  t.d_out = add(2, 3, 2, 8);
  t.d_q = slice(gradient, 0);
  t.d_k = slice(gradient, 1);
  t.d_v = slice(gradient, 2);
  EXPECT_EQ(run_error(t, Direction::backward), "no error");
  for (const float value : gradient) EXPECT_FALSE(std::isnan(value));
}

TEST_F(PlanTest, RunChecksSequenceOffsets) {
  std::vector<int32_t> q_offsets{0, 2, 5};
  std::vector<int32_t> kv_offsets{0, 4, 6};
  t = {};
  t.q = Tensor::contiguous(memory.data(), DType::f32, {6, 2, 8});
  t.k = Tensor::contiguous(memory.data() + 100, DType::f32, {6, 1, 8});
  t.v = Tensor::contiguous(memory.data() + 200, DType::f32, {6, 1, 8});
  t.out = Tensor::contiguous(memory.data() + 300, DType::f32, {6, 2, 8});
  t.cu_seqlens_q = Tensor::contiguous(q_offsets.data(), DType::i32, {3});
  t.cu_seqlens_kv = Tensor::contiguous(kv_offsets.data(), DType::i32, {3});
  EXPECT_EQ(run_error(t), "no error");
  q_offsets[0] = 1;
  EXPECT_EQ(run_error(t), "tilewise::forward: cu_seqlens_q[0] is 1, expected 0");
  q_offsets = {0, 4, 3};
  EXPECT_EQ(run_error(t),
            "tilewise::forward: cu_seqlens_q[2] is 3, expected 4 or more (from cu_seqlens_q[1])");
  q_offsets = {0, 2, 5};
  kv_offsets = {0, 4, 7};
  EXPECT_EQ(run_error(t),
            "tilewise::forward: cu_seqlens_kv[2] is 7, expected at most 6 (from k.size[0])");
}

}  // namespace
}  // namespace tilewise
