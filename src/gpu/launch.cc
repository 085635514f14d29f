// One launch of a forward kernel: kernel arguments, tensor maps for forward_sm90 (plain and
// packed), the launch itself. Packed maps are explained in
// docs/forward-sm90.md.
#include "launch.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>

#include "args.h"
#include "shape.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::gpu {
namespace {

constexpr double kLog2E = 1.4426950408889634;
// tanh(y) / y in powers of y^2, least relative error on |y| <= kSmallSoftcap.
constexpr double kTanhTerms[] = {0x1.fffffd8bce18ep-1, -0x1.5552a690e3a23p-2, 0x1.1097a4995dda1p-3,
                                 -0x1.aad0b7c62a86bp-5, 0x1.fb1943dfbc18ap-7};

// The same on |y| <= kTinySoftcap with a relative error of 1.2e-6. It may cost the LSE no more than
// the contract's 4 * 2^-24 head_dim of a score: from head_dim 16 on that is three times as much,
// and a weight moves by 2e-5 at cap 50, where bf16 rounds it by 2e-3.
constexpr double kTinySoftcap = 0.3;
constexpr double kTinyTerms[] = {0x1.ffffd909c692ap-1, -0x1.55183917ebb7bp-2, 0x1.02be434376e7ep-3};
constexpr int64_t kTinyHeadDim = 16;

// One tensor as TMA sees it: (column, row, head, slab).
struct Rows {
  const void* data;
  Strides strides;
  int64_t columns;
  int64_t rows;  // of a sequence; packed: of the whole tensor
  int64_t heads;
  int64_t batch;
  bool packed;
};

uint64_t stride_bytes(int64_t stride, int64_t size) {
  return size <= 1 || stride == 0 ? 16 : static_cast<uint64_t>(stride) * 2;
}

// Packed tensors get `rows` rows before their first byte: row coordinate limit - length + i with
// slab start + length lands on row start + i, and rows past the sequence's end lie outside the map.
TensorMap encode(const Rows& t, Element element, int box_rows) {
  TensorMap map;
  const uint64_t row_bytes = stride_bytes(t.strides.row, t.rows);
  const uint64_t rows = static_cast<uint64_t>(std::max<int64_t>(t.rows, 1));
  const bool broadcast_heads = t.strides.head == 0;
  const bool broadcast_batch = t.strides.batch == 0;
  uint64_t sizes[4] = {static_cast<uint64_t>(t.columns), rows,
                       broadcast_heads ? 1 : static_cast<uint64_t>(t.heads),
                       broadcast_batch ? 1 : static_cast<uint64_t>(t.batch)};
  uint64_t strides[3] = {row_bytes, stride_bytes(t.strides.head, t.heads),
                         stride_bytes(t.strides.batch, t.batch)};
  uint64_t address = reinterpret_cast<uint64_t>(t.data);
  if (t.packed) {
    sizes[3] = 2 * rows + 1;
    strides[2] = row_bytes;
    address -= rows * row_bytes;
  }
  const uint32_t box[4] = {kBoxColumns, static_cast<uint32_t>(box_rows), 1, 1};
  const uint32_t element_strides[4] = {1, 1, 1, 1};
  const int type = element == Element::kBf16 ? kMapBfloat16 : kMapFloat16;
  check_cuda(driver().cuTensorMapEncodeTiled(&map, type, 4, reinterpret_cast<void*>(address), sizes,
                                             strides, box, element_strides, kMapInterleaveNone,
                                             kMapSwizzle128, kMapPromotionL2_128, kMapZeroFill),
             "cuTensorMapEncodeTiled");
  return map;
}

void require_aligned(const void* data, const char* name) {
  if (reinterpret_cast<uint64_t>(data) % 16 == 0) return;
  throw Error(Status::unsupported,
              std::string("tilewise::forward: ") + name +
                  " does not start at a multiple of 16 bytes, as it did when the plan chose "
                  "forward_sm90; plan with this tensor");
}

int step_of(int64_t stride) { return stride == 0 ? 0 : 1; }

SoftcapTerms softcap_terms(const ForwardProblem& p) {
  SoftcapTerms terms{};
  terms.cap = static_cast<float>(p.softcap);
  for (int i = 0; i < 5; ++i) terms.term[i] = static_cast<float>(p.softcap * kTanhTerms[i]);
  const double y = p.scale / p.softcap;  // of a score of 1
  terms.tiny_limit = static_cast<float>(kTinySoftcap * kTinySoftcap / (y * y));
  bool normal = std::isnormal(terms.tiny_limit);
  double power = p.scale * kLog2E;
  for (int i = 0; i < 3; ++i, power *= y * y) {
    terms.tiny[i] = static_cast<float>(power * kTinyTerms[i]);
    normal = normal && std::isnormal(terms.tiny[i]);
  }
  if (!normal || p.head_dim < kTinyHeadDim) terms.tiny_limit = -1;
  return terms;
}

void set_scale(ForwardArgs& args, const ForwardProblem& p) {
  args.scale_log2 = static_cast<float>(p.scale * kLog2E);
  if (p.softcap > 0) {
    args.scale_log2 = static_cast<float>(kLog2E);
    args.score_scale = static_cast<float>(p.scale / p.softcap);
    args.softcap_terms = softcap_terms(p);
  } else if (p.alibi) {
    args.scale_log2 = static_cast<float>(kLog2E);
    args.score_scale = static_cast<float>(p.scale);
  }
}

// Keys that some row of a plain problem sees lie before this one: those behind it, which may hold
// NaN, are left outside the maps.
int64_t visible_keys(const ForwardProblem& p) {
  const semantics::Band band = semantics::make_band(p.mask, p.q_len, p.kv_len);
  return band.keys_of_row(p.q_len - 1).end;
}

void set_maps(ForwardArgs& args, const ForwardProblem& p, const KernelSpec& spec,
              const ForwardViews& views) {
  const int64_t q_rows = p.packed ? p.total_q : p.q_len;
  const int64_t kv_rows = p.packed ? p.total_kv : visible_keys(p);
  const bool has_keys = kv_rows > 0;
  // Without keys the loads of block 0 still need an address: the first 16 bytes of q, whose weights
  // are all zero and whose rows the epilogue clears.
  const void* k = has_keys ? views.k : views.q;
  const void* v = has_keys ? views.v : views.q;
  const int64_t k_columns = has_keys ? p.head_dim : 8;
  const int64_t v_columns = has_keys ? p.value_dim : 8;
  const int64_t kv_heads = has_keys ? p.kv_heads : 1;
  const int64_t kv_batch = has_keys ? p.batch : 1;
  args.q = encode({views.q, p.q, p.head_dim, q_rows, p.q_heads, p.batch, p.packed}, p.element,
                  kTileRows);
  args.k =
      encode({k, p.k, k_columns, kv_rows, kv_heads, kv_batch, p.packed}, p.element, spec.block_n);
  args.v =
      encode({v, p.v, v_columns, kv_rows, kv_heads, kv_batch, p.packed}, p.element, spec.block_n);
  if (!spec.direct_store) {
    args.out = encode({views.out, p.out, p.value_dim, q_rows, p.q_heads, p.batch, p.packed},
                      p.element, kStoreRows);
  }
  args.q_limit = static_cast<int>(std::max<int64_t>(q_rows, 1));
  args.kv_limit = static_cast<int>(std::max<int64_t>(kv_rows, 1));
  args.q_batch_step = step_of(p.q.batch);
  args.q_head_step = step_of(p.q.head);
  args.k_batch_step = has_keys ? step_of(p.k.batch) : 0;
  args.k_head_step = has_keys ? step_of(p.k.head) : 0;
  args.v_batch_step = has_keys ? step_of(p.v.batch) : 0;
  args.v_head_step = has_keys ? step_of(p.v.head) : 0;
}

RowSource rows_of(const void* data, const Strides& s, Element element, int64_t columns) {
  const int64_t chunk = 16 / bytes_of(element);
  const bool aligned = reinterpret_cast<uint64_t>(data) % 16 == 0 && s.batch % chunk == 0 &&
                       s.row % chunk == 0 && s.head % chunk == 0;
  return {const_cast<void*>(data), s.batch, s.row, s.head, static_cast<int>(columns), aligned};
}

// 96 bits that no earlier launch has left in a workspace: a serial number behind random bits, since
// memory may still hold what another library, or a copy of this one, wrote there.
void number_launch(ForwardArgs& args) {
  static const uint64_t random = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device() | 1;
  }();
  static std::atomic<uint32_t> serial{0};
  args.launch[0] = serial.fetch_add(1, std::memory_order_relaxed);
  args.launch[1] = static_cast<uint32_t>(random);
  args.launch[2] = static_cast<uint32_t>(random >> 32);
}

ForwardArgs make_args(const ForwardPlan& plan, const ForwardViews& views, void* workspace) {
  const ForwardProblem& p = plan.problem;
  ForwardArgs args{};
  if (plan.spec.family == Family::kForwardSm90) set_maps(args, p, plan.spec, views);
  args.q_rows = rows_of(views.q, p.q, p.element, p.head_dim);
  args.k_rows = rows_of(views.k, p.k, p.element, p.head_dim);
  args.v_rows = rows_of(views.v, p.v, p.element, p.value_dim);
  args.out_rows = rows_of(views.out, p.out, p.element, p.value_dim);
  set_scale(args, p);
  args.lse = views.lse;
  args.lse_batch = views.lse_batch;
  args.lse_head = views.lse_head;
  args.q_starts = views.q_starts;
  args.kv_starts = views.kv_starts;
  args.counter = static_cast<UnitCounter*>(workspace);
  number_launch(args);
  args.slopes = views.slopes;
  args.slopes_batch = views.slopes_batch;
  args.sink = views.sink;
  args.dropout = p.dropout;
  args.mask = p.mask;
  args.batch = static_cast<int>(p.batch);
  args.q_heads = static_cast<int>(p.q_heads);
  args.heads_per_kv = static_cast<int>(p.q_heads / std::max<int64_t>(1, p.kv_heads));
  args.q_len = static_cast<int>(p.q_len);
  args.kv_len = static_cast<int>(p.kv_len);
  args.unit_count = plan.unit_count;
  args.groups = plan.groups;
  args.section_heads = plan.section_heads;
  return args;
}

}  // namespace

DeviceFacts facts_of(CUdevice device) {
  DeviceFacts facts;
  int l2_bytes = 0;
  const auto read = [&](int attribute, int* value) {
    check_cuda(driver().cuDeviceGetAttribute(value, attribute, device), "cuDeviceGetAttribute");
  };
  facts.device = device;
  read(kAttributeMultiprocessors, &facts.multiprocessors);
  read(kAttributeL2Bytes, &l2_bytes);
  read(kAttributeMajor, &facts.major);
  read(kAttributeMinor, &facts.minor);
  read(kAttributeSharedOptin, &facts.shared_bytes);
  facts.l2_bytes = l2_bytes;
  return facts;
}

DeviceFacts facts_of_arch(std::string_view arch) {
  struct Arch {
    const char* name;
    int major, minor;
    int shared_kib;  // of a CTA: CUDA's table of compute capabilities
  };
  constexpr Arch kKnown[] = {{"sm_80", 8, 0, 163},  {"sm_86", 8, 6, 99},   {"sm_87", 8, 7, 163},
                             {"sm_89", 8, 9, 99},   {"sm_90a", 9, 0, 227}, {"sm_100a", 10, 0, 227},
                             {"sm_120a", 12, 0, 99}};
  std::string known;
  for (const Arch& one : kKnown) {
    if (arch == one.name) {
      DeviceFacts facts;
      facts.major = one.major;
      facts.minor = one.minor;
      facts.shared_bytes = one.shared_kib << 10;
      return facts;
    }
    known += (known.empty() ? "" : ", ") + std::string(one.name);
  }
  throw Error(Status::invalid_argument,
              "prebuild: arch is \"" + std::string(arch) + "\", expected one of " + known);
}

void run_forward(const ForwardPlan& plan, const Kernel& kernel, const ForwardViews& views,
                 void* workspace, CUstream stream) {
  if (plan.grid == 0) return;
  if (plan.spec.family == Family::kForwardSm90) {
    require_aligned(views.q, "q");
    require_aligned(views.k, "k");
    require_aligned(views.v, "v");
    if (!plan.spec.direct_store) require_aligned(views.out, "out");
  }
  const ScopedDevice device(plan.device);
  const Driver& d = driver();
  ForwardArgs args = make_args(plan, views, workspace);
  void* parameters[] = {&args};
  check_cuda(
      d.cuLaunchKernel(kernel.function(), static_cast<unsigned>(plan.grid), 1, 1,
                       static_cast<unsigned>(kernel.threads), 1, 1,
                       static_cast<unsigned>(kernel.shared_bytes), stream, parameters, nullptr),
      "cuLaunchKernel");
}

}  // namespace tilewise::gpu
