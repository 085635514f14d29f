// Backend "gpu": attention on NVIDIA GPUs, by kernels that are made when first used (module.h).
//
//   why_not   device, driver, direction, and what no kernel can take (launch.h)
//   plan      kernel, tile, order, stages, schedule (heuristics.cc); loads or compiles the kernel
//   run       fills the launch struct and enqueues: no allocation, no synchronisation
#include "backend.h"

#include "cache.h"
#include "driver.h"
#include "error.h"
#include "launch.h"
#include "module.h"
#include "prebuild.h"

namespace tilewise {

namespace {

using gpu::DeviceFacts;
using gpu::ForwardProblem;
using gpu::ForwardViews;
using gpu::Strides;

// [b, s, h, d] or packed [total, h, d].
Strides strides_of(const Problem& problem, Arg arg) {
  const Tensor& layout = problem.layout(arg);
  if (problem.packed) return {0, layout.stride[0], layout.stride[1]};
  return {layout.stride[0], layout.stride[1], layout.stride[2]};
}

gpu::Element element_of(DType dtype) {
  if (dtype == DType::f32) return gpu::Element::kFp32;
  return dtype == DType::f16 ? gpu::Element::kFp16 : gpu::Element::kBf16;
}

ForwardProblem forward_problem(const Problem& problem) {
  ForwardProblem forward;
  forward.element = element_of(problem.dtype);
  forward.batch = problem.batch;
  forward.q_heads = problem.q_heads;
  forward.kv_heads = problem.kv_heads;
  forward.q_len = problem.q_len;
  forward.kv_len = problem.kv_len;
  forward.total_q = problem.total_q;
  forward.total_kv = problem.total_kv;
  forward.head_dim = problem.head_dim;
  forward.value_dim = problem.value_dim;
  forward.packed = problem.packed;
  forward.mask = problem.mask_rule();
  forward.dropout = problem.dropout();
  forward.scale = problem.scale;
  forward.softcap = problem.options.softcap;
  forward.alibi = problem.has(Arg::alibi_slopes);
  forward.sink = problem.has(Arg::sink);
  forward.lse = problem.has(Arg::lse);
  forward.q = strides_of(problem, Arg::q);
  forward.k = strides_of(problem, Arg::k);
  forward.v = strides_of(problem, Arg::v);
  forward.out = strides_of(problem, Arg::out);
  forward.aligned = problem.alignment == 16;
  return forward;
}

ForwardViews views_of(const Problem& problem, const Tensors& tensors) {
  ForwardViews views;
  views.q = tensors.q.data;
  views.k = tensors.k.data;
  views.v = tensors.v.data;
  views.out = tensors.out.data;
  if (tensors.lse.given()) {
    views.lse = static_cast<float*>(tensors.lse.data);
    views.lse_batch = problem.packed ? 0 : tensors.lse.stride[0];
    views.lse_head = tensors.lse.stride[problem.packed ? 0 : 1];
  }
  views.q_starts = static_cast<const int*>(tensors.cu_seqlens_q.data);
  views.kv_starts = static_cast<const int*>(tensors.cu_seqlens_kv.data);
  views.slopes = static_cast<const float*>(tensors.alibi_slopes.data);
  views.slopes_batch = tensors.alibi_slopes.ndim == 2 ? tensors.alibi_slopes.stride[0] : 0;
  views.sink = static_cast<const float*>(tensors.sink.data);
  return views;
}

class GpuPlan final : public BackendPlan {
 public:
  GpuPlan(const Problem& problem, const DeviceFacts& facts)
      : problem_(problem), plan_(gpu::plan_forward(forward_problem(problem), facts)) {
    if (plan_.grid > 0) kernel_ = &gpu::load_kernel(plan_.spec, facts.device);
  }
  const Backend& backend() const override { return gpu_backend(); }
  size_t workspace_bytes() const override { return gpu::kForwardWorkspaceBytes; }
  std::string describe() const override {
    return "kernel: " + gpu::text_of(plan_.spec) + "\nchoice: " + plan_.why +
           "\ngrid: " + std::to_string(plan_.grid) + " blocks\n";
  }
  void run(const Tensors& tensors, void* workspace, void* stream) const override {
    if (kernel_ == nullptr) return;
    gpu::run_forward(plan_, *kernel_, views_of(problem_, tensors), workspace,
                     static_cast<gpu::CUstream>(stream));
  }

 private:
  Problem problem_;
  gpu::ForwardPlan plan_;
  const gpu::Kernel* kernel_ = nullptr;
};

class GpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "gpu"; }
  DeviceType memory() const override { return DeviceType::cuda; }
  bool only_by_name() const override { return false; }
  std::vector<std::string> why_not(const Problem& problem) const override {
    if (problem.device.type != DeviceType::cuda) return {"the tensors are in host memory"};
    std::string missing;
    if (gpu::find_driver(&missing) == nullptr) return {missing};
    std::vector<std::string> reasons;
    if (problem.direction == Direction::backward) {
      reasons.push_back("no backward kernel yet");
    }
    if (!reasons.empty()) return reasons;
    return gpu::why_not_forward(forward_problem(problem), gpu::facts_of(problem.device.id));
  }
  std::unique_ptr<const BackendPlan> plan(const Problem& problem) const override {
    return std::make_unique<GpuPlan>(problem, gpu::facts_of(problem.device.id));
  }
};

}  // namespace

std::string prebuild_kernel(const Problem& problem, std::string_view arch,
                            const std::string& pack) {
  const DeviceFacts facts = gpu::facts_of_arch(arch);
  const ForwardProblem forward = forward_problem(problem);
  std::vector<std::string> reasons = gpu::why_not_forward(forward, facts);
  if (!reasons.empty()) {
    throw_unsupported("prebuild", "no kernel for " + std::string(arch) + " can do this",
                      {{"gpu", std::move(reasons)}});
  }
  const gpu::KernelSpec spec = gpu::plan_forward(forward, facts).spec;
  gpu::prebuild(spec, arch, pack);
  return gpu::text_of(spec);
}

std::string own_pack() { return gpu::pack_directory(); }

const Backend& gpu_backend() {
  static const GpuBackend backend;
  return backend;
}

}  // namespace tilewise
