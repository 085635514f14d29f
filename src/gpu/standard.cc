// Backend "gpu_standard": attention as textbooks have it, on a GPU, for comparison. Runs only when
// named. The products are cuBLAS', the softmax between them is one fused kernel of our own, and the
// matrix lies in the workspace in the dtype of the inputs, as frameworks keep it:
//
//   1. S = scale q k^T       2. P = softmax(mask(S)), in place        3. out = P v
//
// A group of heads shares k and v: one batch of products for each member of the group.
#include <algorithm>

#include "backend.h"
#include "cublas.h"
#include "driver.h"
#include "launch.h"
#include "module.h"

namespace tilewise {

namespace {

using gpu::Element;

constexpr int kMostKeys = 32768;  // that the registers of 1024 threads hold
constexpr int kThreads[] = {128, 256, 512, 1024};
constexpr int kVectors = 4;  // of 8 scores, for each thread at most

Element element_of(DType dtype) { return dtype == DType::f16 ? Element::kFp16 : Element::kBf16; }

int64_t row_stride_of(const Problem& problem) { return (problem.kv_len + 7) / 8 * 8; }

std::string stub_of(DType dtype, int threads, int vectors) {
  const std::string values =
      std::string(dtype == DType::f16 ? "Element::kFp16" : "Element::kBf16") + ", " +
      std::to_string(threads) + ", " + std::to_string(vectors);
  return "#include \"kernels/standard_softmax.cuh\"\n"
         "using namespace tilewise;\nusing namespace tilewise::gpu;\n"
         "extern \"C\" __global__ void __launch_bounds__(" +
         std::to_string(threads) +
         ")\n"
         "softmax_rows(unsigned short* matrix, float* lse, long long lse_batch, long long "
         "lse_head,\n"
         "             semantics::MaskRule rule, int q_len, int kv_len, int row_stride) {\n"
         "  standard_softmax<" +
         values +
         ">(matrix, lse, lse_batch, lse_head, rule, q_len, kv_len,\n"
         "                                      row_stride);\n}\n";
}

class StandardPlan final : public BackendPlan {
 public:
  explicit StandardPlan(const Problem& problem) : problem_(problem) {
    const int64_t vectors = row_stride_of(problem) / 8;
    for (const int threads : kThreads) {
      threads_ = threads;
      vectors_ = static_cast<int>(std::max<int64_t>(1, (vectors + threads - 1) / threads));
      if (vectors_ <= kVectors) break;
    }
    if (empty()) return;
    const gpu::ScopedDevice scope(problem.device.id);
    gpu::prepare_products(problem.device.id);
    softmax_ = gpu::load_stub(stub_of(problem.dtype, threads_, vectors_), "softmax_rows",
                              problem.device.id);
  }
  const Backend& backend() const override { return gpu_standard_backend(); }
  size_t workspace_bytes() const override {
    return static_cast<size_t>(problem_.batch * problem_.q_heads * head_numbers() * 2);
  }
  std::string describe() const override {
    return "score matrix: " + std::to_string(workspace_bytes()) +
           " bytes\nsoftmax: " + std::to_string(threads_) + " threads a row\n";
  }
  void run(const Tensors& tensors, void* workspace, void* stream) const override;

 private:
  bool empty() const { return problem_.batch * problem_.q_len * problem_.kv_len == 0; }
  int64_t head_numbers() const { return problem_.q_len * row_stride_of(problem_); }
  int64_t group() const { return problem_.q_heads / problem_.kv_heads; }
  // The matrices of one batch entry that belong to member `index` of each group.
  gpu::Matrices tensor(const Tensor& t, int64_t batch, int64_t index, int64_t heads_apart) const;
  gpu::Matrices scores(void* workspace, int64_t batch, int64_t index) const;
  void softmax(const Tensors& tensors, void* workspace, gpu::CUstream stream) const;

  Problem problem_;
  int threads_ = 0;
  int vectors_ = 0;
  gpu::CUfunction softmax_ = nullptr;
};

gpu::Matrices StandardPlan::tensor(const Tensor& t, int64_t batch, int64_t index,
                                   int64_t heads_apart) const {
  const auto* const first = static_cast<const uint16_t*>(t.data);
  // A tensor of one row has no stride between rows; cuBLAS wants one that holds a row.
  const int64_t row_stride = std::max(t.stride[1], t.size[3]);
  return {first + batch * t.stride[0] + index * t.stride[2], row_stride, heads_apart * t.stride[2],
          false};
}

gpu::Matrices StandardPlan::scores(void* workspace, int64_t batch, int64_t index) const {
  auto* const first = static_cast<uint16_t*>(workspace);
  return {first + (batch * problem_.q_heads + index) * head_numbers(), row_stride_of(problem_),
          group() * head_numbers(), false};
}

void StandardPlan::softmax(const Tensors& tensors, void* workspace, gpu::CUstream stream) const {
  semantics::MaskRule rule = problem_.mask_rule();
  void* matrix = workspace;
  void* lse = tensors.lse.data;
  auto lse_batch = static_cast<long long>(tensors.lse.given() ? tensors.lse.stride[0] : 0);
  auto lse_head = static_cast<long long>(tensors.lse.given() ? tensors.lse.stride[1] : 0);
  int q_len = static_cast<int>(problem_.q_len);
  int kv_len = static_cast<int>(problem_.kv_len);
  int row_stride = static_cast<int>(row_stride_of(problem_));
  void* arguments[] = {&matrix, &lse, &lse_batch, &lse_head, &rule, &q_len, &kv_len, &row_stride};
  gpu::check_cuda(gpu::driver().cuLaunchKernel(softmax_, static_cast<unsigned>(q_len),
                                               static_cast<unsigned>(problem_.q_heads),
                                               static_cast<unsigned>(problem_.batch),
                                               static_cast<unsigned>(threads_), 1, 1, 0, stream,
                                               arguments, nullptr),
                  "cuLaunchKernel");
}

void StandardPlan::run(const Tensors& tensors, void* workspace, void* given_stream) const {
  if (empty()) return;
  const int device = problem_.device.id;
  const gpu::ScopedDevice scope(device);
  const auto stream = static_cast<gpu::CUstream>(given_stream);
  gpu::Product product;
  product.element = element_of(problem_.dtype);
  product.batch = problem_.kv_heads;
  product.columns = problem_.q_len;
  const auto for_each_batch = [&](const auto& body) {
    for (int64_t b = 0; b < problem_.batch; ++b) {
      for (int64_t member = 0; member < group(); ++member) body(b, member);
    }
  };
  for_each_batch([&](int64_t b, int64_t member) {
    product.rows = problem_.kv_len;
    product.inner = problem_.head_dim;
    product.factor = static_cast<float>(problem_.scale);
    product.a = tensor(tensors.k, b, 0, 1);
    product.a.transposed = true;
    product.b = tensor(tensors.q, b, member, group());
    product.c = scores(workspace, b, member);
    gpu::multiply(product, device, stream);
  });
  softmax(tensors, workspace, stream);
  for_each_batch([&](int64_t b, int64_t member) {
    product.rows = problem_.value_dim;
    product.inner = problem_.kv_len;
    product.factor = 1;
    product.a = tensor(tensors.v, b, 0, 1);
    product.b = scores(workspace, b, member);
    product.c = tensor(tensors.out, b, member, group());
    gpu::multiply(product, device, stream);
  });
}

class StandardBackend final : public Backend {
 public:
  std::string_view name() const override { return "gpu_standard"; }
  DeviceType memory() const override { return DeviceType::cuda; }
  bool only_by_name() const override { return true; }
  std::vector<std::string> why_not(const Problem& problem) const override;
  std::unique_ptr<const BackendPlan> plan(const Problem& problem) const override {
    return std::make_unique<StandardPlan>(problem);
  }
};

std::vector<std::string> StandardBackend::why_not(const Problem& problem) const {
  if (problem.device.type != DeviceType::cuda) return {"the tensors are in host memory"};
  std::vector<std::string> reasons;
  const auto refuse = [&](bool wrong, const char* what) {
    if (wrong) reasons.push_back(std::string("standard attention on a GPU ") + what);
  };
  refuse(problem.direction == Direction::backward, "has no backward");
  refuse(problem.dtype == DType::f32, "has no fp32: bf16 or fp16");
  refuse(problem.packed, "takes no packed batches");
  refuse(problem.options.softcap > 0, "has no softcap");
  refuse(problem.has(Arg::alibi_slopes), "has no ALiBi");
  refuse(problem.has(Arg::sink), "has no sink");
  refuse(problem.dropout().active(), "has no dropout");
  refuse(problem.kv_len > kMostKeys, "takes at most 32768 keys");
  refuse(problem.q_heads > 65535 || problem.batch > 65535, "takes at most 65535 heads and entries");
  refuse(problem.q_len == 0 || problem.kv_len == 0, "takes no empty tensors");
  for (const Arg arg : {Arg::q, Arg::k, Arg::v, Arg::out}) {
    const Tensor& layout = problem.layout(arg);
    refuse(layout.stride[layout.ndim - 1] != 1, "reads rows whose numbers lie side by side");
  }
  std::string missing;
  if (gpu::find_driver(&missing) == nullptr || gpu::find_cublas(&missing) == nullptr) {
    reasons.push_back(missing);
  }
  return reasons;
}

}  // namespace

const Backend& gpu_standard_backend() {
  static const StandardBackend backend;
  return backend;
}

}  // namespace tilewise
