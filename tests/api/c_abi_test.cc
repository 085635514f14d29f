// The C ABI: every function, the sized structs, and the thread-local message of each failure.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tilewise/tilewise.h"

namespace {

// b=1 h=1 q=2 kv=2 d=2 in fp32, with room for forward and backward.
struct Tiny {
  Tiny() {
    const int64_t size[4] = {1, 2, 1, 2};
    tensors.q = tw_tensor_4d(q, TW_F32, size);
    tensors.k = tw_tensor_4d(k, TW_F32, size);
    tensors.v = tw_tensor_4d(v, TW_F32, size);
    tensors.out = tw_tensor_4d(out, TW_F32, size);
    tensors.lse = tw_tensor_4d(lse, TW_F32, size);
    tensors.lse.ndim = 3;
    const int64_t lse_size[3] = {1, 1, 2};
    const int64_t lse_stride[3] = {2, 2, 1};
    for (int d = 0; d < 3; ++d) {
      tensors.lse.size[d] = lse_size[d];
      tensors.lse.stride[d] = lse_stride[d];
    }
  }
  void add_gradients() {
    tensors.d_out = tensors.q;
    tensors.d_out.data = d_out;
    tensors.d_q = tensors.q;
    tensors.d_q.data = d_q;
  }
  float q[4] = {1, 0, 0, 1};
  float k[4] = {1, 0, 0, 1};
  float v[4] = {1, 2, 3, 4};
  float out[4] = {NAN, NAN, NAN, NAN};
  float lse[2] = {NAN, NAN};
  float d_out[4] = {1, 1, 1, 1};
  float d_q[4] = {NAN, NAN, NAN, NAN};
  tw_tensors tensors = TW_TENSORS_INIT;
};

TEST(CAbi, ForwardMatchesTheFormula) {
  Tiny tiny;
  tw_options options = TW_OPTIONS_INIT;
  options.has_scale = 1;
  options.scale = 1.0;
  ASSERT_EQ(tw_forward(&tiny.tensors, &options, nullptr), TW_OK) << tw_last_error();
  const double e = std::exp(1.0);
  EXPECT_NEAR(tiny.out[0], (e * 1 + 3) / (e + 1), 1e-6);
  EXPECT_NEAR(tiny.lse[0], std::log(e + 1), 1e-6);
}

TEST(CAbi, PlanRunsMoreThanOnce) {
  Tiny tiny;
  tw_options options = TW_OPTIONS_INIT;
  options.mask_right = 0;  // causal
  tw_plan* plan = nullptr;
  ASSERT_EQ(tw_plan_create(TW_FORWARD, &tiny.tensors, &options, &plan), TW_OK) << tw_last_error();
  size_t bytes = 0;
  ASSERT_EQ(tw_plan_workspace_bytes(plan, &bytes), TW_OK);
  void* workspace = std::aligned_alloc(64, (bytes + 127) / 64 * 64);
  for (int run = 0; run < 2; ++run) {
    tiny.out[0] = NAN;
    ASSERT_EQ(tw_plan_run(plan, &tiny.tensors, workspace, bytes, nullptr), TW_OK)
        << tw_last_error();
    EXPECT_EQ(tiny.out[0], 1);  // row 0 sees key 0 only
    EXPECT_EQ(tiny.out[1], 2);
  }
  size_t needed = 0;
  ASSERT_EQ(tw_plan_describe(plan, nullptr, 0, &needed), TW_OK);
  std::string text(needed, '?');
  ASSERT_EQ(tw_plan_describe(plan, text.data(), text.size(), nullptr), TW_OK);
  EXPECT_NE(text.find("backend: cpu"), std::string::npos) << text;
  char prefix[9] = "????????";
  ASSERT_EQ(tw_plan_describe(plan, prefix, 8, nullptr), TW_OK);
  EXPECT_STREQ(prefix, "backend");
  EXPECT_EQ(tw_plan_run(plan, &tiny.tensors, workspace, bytes > 0 ? bytes - 1 : 0, nullptr),
            bytes > 0 ? TW_WORKSPACE_TOO_SMALL : TW_OK);
  std::free(workspace);
  tw_plan_destroy(plan);
  tw_plan_destroy(nullptr);
}

TEST(CAbi, BackwardOfUniformGradientIsZeroForEqualValues) {
  Tiny tiny;
  for (float& value : tiny.v) value = 1;
  tiny.add_gradients();
  tw_tensors forward = tiny.tensors;
  forward.d_out = forward.d_q = tw_tensor{};
  ASSERT_EQ(tw_forward(&forward, nullptr, nullptr), TW_OK) << tw_last_error();
  ASSERT_EQ(tw_backward(&tiny.tensors, nullptr, nullptr), TW_OK) << tw_last_error();
  for (const float value : tiny.d_q) EXPECT_NEAR(value, 0, 1e-6);
}

TEST(CAbi, MergesAndWhyNots) {
  Tiny tiny;
  ASSERT_EQ(tw_forward(&tiny.tensors, nullptr, nullptr), TW_OK) << tw_last_error();
  const tw_partial part = {tiny.tensors.out, tiny.tensors.lse};
  float merged[4] = {};
  tw_tensor out = tiny.tensors.out;
  out.data = merged;
  ASSERT_EQ(tw_merge(&part, 1, &out, nullptr), TW_OK) << tw_last_error();
  EXPECT_EQ(merged[3], tiny.out[3]);
  char text[4096];
  ASSERT_EQ(tw_why_not(TW_FORWARD, &tiny.tensors, nullptr, text, sizeof text, nullptr), TW_OK);
  EXPECT_NE(std::string(text).find("cpu: available\n"), std::string::npos) << text;
}

TEST(CAbi, ReadsSizedStructs) {
  Tiny tiny;
  struct Longer {
    tw_options known;
    int64_t unknown;
  } longer = {TW_OPTIONS_INIT, 0};
  longer.known.struct_bytes = sizeof longer;
  EXPECT_EQ(tw_forward(&tiny.tensors, &longer.known, nullptr), TW_OK) << tw_last_error();
  longer.unknown = 1;
  EXPECT_EQ(tw_forward(&tiny.tensors, &longer.known, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(),
               "tilewise: options sets a field that this version of the library does not know");
  // A caller that knew the mask only: the rest takes its defaults.
  tw_options shorter = TW_OPTIONS_INIT;
  shorter.struct_bytes = offsetof(tw_options, mask_alignment);
  shorter.softcap = -1;  // beyond the caller's struct: not looked at
  EXPECT_EQ(tw_forward(&tiny.tensors, &shorter, nullptr), TW_OK) << tw_last_error();
  shorter.struct_bytes = 0;
  EXPECT_EQ(tw_forward(&tiny.tensors, &shorter, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(),
               "tilewise: options.struct_bytes is too small, expected sizeof the struct (use the "
               "_INIT macro)");
}

TEST(CAbi, EveryFailureHasAMessage) {
  Tiny tiny;
  tw_plan* plan = nullptr;
  EXPECT_EQ(tw_plan_create(TW_FORWARD, &tiny.tensors, nullptr, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "tilewise: plan is NULL");
  EXPECT_EQ(tw_plan_create(static_cast<tw_direction>(7), &tiny.tensors, nullptr, &plan),
            TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "tilewise: direction is 7, expected TW_FORWARD or TW_BACKWARD");
  EXPECT_EQ(tw_forward(nullptr, nullptr, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "tilewise: tensors is NULL");
  tw_options options = TW_OPTIONS_INIT;
  options.backend = "abacus";
  EXPECT_EQ(tw_forward(&tiny.tensors, &options, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tw_last_error()).find("backend is \"abacus\", expected one of gpu, cpu"),
            std::string::npos)
      << tw_last_error();
  tiny.tensors.k.size[3] = 3;
  EXPECT_EQ(tw_forward(&tiny.tensors, nullptr, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "tilewise::forward: k.size[3] is 3, expected 2 (from q.size[3])");
  tiny.tensors.q.ndim = 5;
  EXPECT_EQ(tw_forward(&tiny.tensors, nullptr, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "tilewise: tensor.ndim is 5, expected 0..4");
  EXPECT_EQ(tw_merge(nullptr, 1, &tiny.tensors.out, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "tilewise: parts is NULL");
}

TEST(CAbi, MessagesBelongToTheirThread) {
  EXPECT_EQ(tw_forward(nullptr, nullptr, nullptr), TW_INVALID_ARGUMENT);
  std::string elsewhere = "?";
  std::thread([&] { elsewhere = tw_last_error(); }).join();
  EXPECT_EQ(elsewhere, "");
  EXPECT_STREQ(tw_last_error(), "tilewise: tensors is NULL");
}

TEST(CAbi, NamesItself) {
  EXPECT_STREQ(tw_version(), "0.1.0");
  EXPECT_STREQ(tw_status_string(TW_WORKSPACE_TOO_SMALL), "workspace too small");
  EXPECT_STREQ(tw_status_string(static_cast<tw_status>(99)), "unknown status");
  EXPECT_GE(tw_num_threads(), 1);
  EXPECT_EQ(tw_set_num_threads(1), TW_OK);
  EXPECT_EQ(tw_num_threads(), 1);
  EXPECT_EQ(tw_set_num_threads(0), TW_OK);
  EXPECT_EQ(tw_set_num_threads(-1), TW_INVALID_ARGUMENT);
  EXPECT_STREQ(tw_last_error(), "tilewise::set_num_threads: threads is -1, expected 0 or more");
}

// Runs the workers one after another on the calling thread.
void run_in_turn(void* context, int workers, void (*body)(void*, int), void* argument) {
  ++*static_cast<int*>(context);
  for (int w = 0; w < workers; ++w) body(argument, w);
}

// 8 heads: more than one task, or there would be nothing to hand out.
TEST(CAbi, UsesTheCallersExecutor) {
  const int64_t size[4] = {1, 2, 8, 2};
  std::vector<float> in(32, 0.5f);
  std::vector<float> out(32, NAN);
  tw_tensors tensors = TW_TENSORS_INIT;
  tensors.q = tensors.k = tensors.v = tw_tensor_4d(in.data(), TW_F32, size);
  tensors.out = tw_tensor_4d(out.data(), TW_F32, size);
  int calls = 0;
  ASSERT_EQ(tw_set_num_threads(3), TW_OK);
  ASSERT_EQ(tw_set_executor(run_in_turn, &calls), TW_OK);
  EXPECT_EQ(tw_forward(&tensors, nullptr, nullptr), TW_OK) << tw_last_error();
  ASSERT_EQ(tw_set_executor(nullptr, nullptr), TW_OK);
  ASSERT_EQ(tw_set_num_threads(0), TW_OK);
  EXPECT_GE(calls, 1);
  for (const float value : out) EXPECT_EQ(value, 0.5f);
}

}  // namespace
