// One forward launch: what is asked (ForwardProblem), what was decided (ForwardPlan), where the
// data lies (ForwardViews). Everything after the plan only fills a struct, encodes four tensor maps
// (forward_sm90) and enqueues: no allocation, no synchronisation, capturable in a CUDA graph.
// Docs: docs/forward-sm90.md, docs/forward-mma.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "driver.h"
#include "module.h"
#include "semantics/mask.h"
#include "semantics/philox.h"
#include "spec.h"

namespace tilewise::gpu {

// Strides of one tensor in elements; the innermost stride is 1. Packed tensors ignore `batch`.
struct Strides {
  int64_t batch = 0;
  int64_t row = 0;
  int64_t head = 0;
};

struct ForwardProblem {
  Element element = Element::kBf16;
  int64_t batch = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t q_len = 0;     // packed: upper bound of a sequence's rows
  int64_t kv_len = 0;    // packed: upper bound of a sequence's keys
  int64_t total_q = 0;   // packed: rows of q
  int64_t total_kv = 0;  // packed: rows of k
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  bool packed = false;
  semantics::MaskRule mask{-1, -1, 0, 0};
  semantics::Dropout dropout{};
  double scale = 1;
  double softcap = 0;
  bool alibi = false;
  bool sink = false;
  bool lse = false;
  Strides q, k, v, out;
  bool aligned = true;  // q, k, v and out start at multiples of 16 bytes
};

struct DeviceFacts {
  CUdevice device = 0;
  int multiprocessors = 132;
  int64_t l2_bytes = 60 << 20;
  int shared_bytes = 232448;  // largest shared memory of a CTA
  int major = 9;
  int minor = 0;
};
DeviceFacts facts_of(CUdevice device);
// Of an architecture such as "sm_90a", without a device. Throws Error for one not known.
DeviceFacts facts_of_arch(std::string_view arch);

struct ForwardPlan {
  ForwardProblem problem;
  KernelSpec spec;
  CUdevice device = 0;
  int grid = 0;           // 0: nothing to launch
  int unit_count = 0;     // plain problems; packed ones are counted on the device
  int groups = 0;         // units of one head
  int section_heads = 0;  // heads walked together
  std::string why;        // one line on the choice
};

// Data pointers of one run. lse, slopes and sink are null when the problem has none.
struct ForwardViews {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  int64_t lse_batch = 0;  // strides of lse in elements
  int64_t lse_head = 0;
  const int* q_starts = nullptr;
  const int* kv_starts = nullptr;
  const float* slopes = nullptr;
  int64_t slopes_batch = 0;
  const float* sink = nullptr;
};

// Every reason against a GPU plan for this problem: what no kernel can take.
std::vector<std::string> why_not_forward(const ForwardProblem& problem, const DeviceFacts& facts);
// Every reason against forward_sm90, worded to follow "because"; empty = it is taken.
std::vector<std::string> why_not_sm90(const ForwardProblem& problem, const DeviceFacts& facts);

// Chooses kernel, tile, order, stages and schedule; heuristics.cc. forward_sm90 where it can, else
// forward_mma, and the plan says why.
ForwardPlan plan_forward(const ForwardProblem& problem, const DeviceFacts& facts);
// The same with the kernel named by the caller (tuning, tests).
ForwardPlan plan_family(const ForwardProblem& problem, const DeviceFacts& facts, Family family);
// Completes a plan whose spec the caller has set (tuning, tests).
ForwardPlan plan_with_spec(const ForwardProblem& problem, const DeviceFacts& facts,
                           const KernelSpec& spec, int section_heads);

constexpr size_t kForwardWorkspaceBytes = 64;  // the unit counter

// Enqueues the plan on its device, whichever is current. The workspace is device memory of
// kForwardWorkspaceBytes, of any content. Throws Error before anything is
// enqueued when forward_sm90 was planned and a pointer is not aligned to 16 bytes.
void run_forward(const ForwardPlan& plan, const Kernel& kernel, const ForwardViews& views,
                 void* workspace, CUstream stream);

}  // namespace tilewise::gpu
