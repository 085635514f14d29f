// Kernels that no plan takes by itself, but that the bench can ask for: other schedules, sections,
// tiles and orders, and forward_mma where TMA could read. Each must give what the planned kernel
// gives, which tests/contract judges. Runs on GPU 0, as part of public_check.
#include <gtest/gtest.h>

#include <cmath>

#include "device_call.h"
#include "launch.h"
#include "reference/element.h"

namespace tilewise::gpu::testing {
namespace {

Strides strides_of(const Tensor& t) { return {t.stride[0], t.stride[1], t.stride[2]}; }

// A plain bf16 call on a causal or an open mask; `softcap` as in its Case.
ForwardProblem problem_of(const Tensors& t, bool causal, double softcap) {
  ForwardProblem p;
  p.batch = t.q.size[0];
  p.q_len = t.q.size[1];
  p.q_heads = t.q.size[2];
  p.head_dim = t.q.size[3];
  p.kv_len = t.k.size[1];
  p.kv_heads = t.k.size[2];
  p.value_dim = t.v.size[3];
  p.mask = {-1, causal ? 0 : -1, 0, 0};
  p.scale = 1 / std::sqrt(static_cast<double>(p.head_dim));
  p.softcap = softcap;
  p.lse = true;
  p.q = strides_of(t.q);
  p.k = strides_of(t.k);
  p.v = strides_of(t.v);
  p.out = strides_of(t.out);
  return p;
}

// Runs a plan on the call's tensors, whose outputs are poisoned first.
std::vector<std::byte> results_of(DeviceCall& call, const ForwardPlan& plan) {
  call.mirror().upload();
  const Tensors t = call.on_device();
  ForwardViews views;
  views.q = t.q.data;
  views.k = t.k.data;
  views.v = t.v.data;
  views.out = t.out.data;
  views.lse = static_cast<float*>(t.lse.data);
  views.lse_batch = t.lse.stride[0];
  views.lse_head = t.lse.stride[1];
  const DeviceBuffer workspace(kForwardWorkspaceBytes, 0);
  const Stream stream;
  run_forward(plan, load_kernel(plan.spec, 0), views, workspace.data(), stream.get());
  stream.wait();
  return call.results();
}

std::vector<double> values_of(DeviceCall& call) {
  const Tensor out = call.tensors().forward().out;
  std::vector<double> values;
  for (int64_t b = 0; b < out.size[0]; ++b) {
    for (int64_t row = 0; row < out.size[1]; ++row) {
      for (int64_t head = 0; head < out.size[2]; ++head) {
        for (int64_t d = 0; d < out.size[3]; ++d) {
          const int64_t at = b * out.stride[0] + row * out.stride[1] + head * out.stride[2] + d;
          values.push_back(reference::read_element(out.data, out.dtype, at));
        }
      }
    }
  }
  return values;
}

struct Call {
  const char* text;
  bool causal;
  double softcap;
};
constexpr Call kCalls[] = {
    {"b=2 hq=40 hkv=8 q=700 d=64 mask=causal dtype=bf16", true, 0},
    {"b=2 hq=40 hkv=8 q=300 kv=700 d=128 dtype=bf16", false, 0},
    {"b=2 hq=40 hkv=8 q=700 d=128 mask=causal softcap=20 dtype=bf16", true, 20},
    {"b=2 hq=10 q=300 kv=350 d=256 mask=causal dtype=bf16", true, 0}};

// Which CTA takes a unit, and when, changes no bit.
TEST(Specs, SchedulesAndSectionsGiveTheSameBits) {
  for (const Call& one : kCalls) {
    SCOPED_TRACE(one.text);
    DeviceCall call(one.text);
    const ForwardProblem problem = problem_of(call.on_device(), one.causal, one.softcap);
    const DeviceFacts facts = facts_of(0);
    const ForwardPlan plan = plan_forward(problem, facts);
    ASSERT_EQ(plan.spec.family, Family::kForwardSm90) << plan.why;
    const std::vector<std::byte> expected = results_of(call, plan);
    for (const int section : {1, 8, 24, 80}) {
      for (const Schedule schedule : {Schedule::kStatic, Schedule::kDynamic}) {
        KernelSpec spec = plan.spec;
        spec.schedule = schedule;
        EXPECT_EQ(results_of(call, plan_with_spec(problem, facts, spec, section)), expected)
            << "section " << section << ", " << text_of(spec);
      }
    }
  }
}

// Other tiles and orders sum in another order: two roundings of bf16 apart at most.
void expect_close(DeviceCall& call, const ForwardPlan& plan, const std::vector<double>& expected) {
  results_of(call, plan);
  const std::vector<double> found = values_of(call);
  ASSERT_EQ(found.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = std::abs(found[i] - expected[i]) / (0.25 + std::abs(expected[i]));
    worst = error <= worst ? worst : error;
  }
  EXPECT_LT(worst, 1.0 / 64) << text_of(plan.spec);
}

TEST(Specs, OtherTilesOrdersAndForwardMmaAgree) {
  for (const Call& one : kCalls) {
    SCOPED_TRACE(one.text);
    DeviceCall call(one.text);
    const ForwardProblem problem = problem_of(call.on_device(), one.causal, one.softcap);
    const DeviceFacts facts = facts_of(0);
    const ForwardPlan plan = plan_forward(problem, facts);
    results_of(call, plan);
    const std::vector<double> expected = values_of(call);
    expect_close(call, plan_family(problem, facts, Family::kForwardMma), expected);
    const bool wide = problem.head_dim > 128;
    for (const LoopOrder order : {LoopOrder::kSequential, LoopOrder::kOverlapped}) {
      KernelSpec spec = plan.spec;
      spec.order = order;
      spec.consumers = wide ? 2 : 3;
      spec.block_n = 64;
      spec.k_stages = spec.v_stages = wide ? 2 : 4;
      expect_close(call, plan_with_spec(problem, facts, spec, plan.section_heads), expected);
    }
  }
}

}  // namespace
}  // namespace tilewise::gpu::testing
