// From a ForwardProblem to a ForwardPlan: what forward_sm90 cannot do, which sides of the mask hide
// keys, which tile, order and section to take. Measurements behind the choices:
// docs/forward-sm90.md.
#include <algorithm>

#include "launch.h"
#include "shape.h"

namespace tilewise::gpu {
namespace {

constexpr int64_t kMaxUnits = int64_t{1} << 30;

// Whether a side of the band hides any key of any row; packed lengths are not known here.
void set_bounds(KernelSpec& spec, const ForwardProblem& p) {
  const semantics::Band band = semantics::make_band(p.mask, p.q_len, p.kv_len);
  const bool left = band.left != semantics::kUnbounded;
  const bool right = band.right != semantics::kUnbounded;
  spec.bound_left = left && (p.packed || band.keys_of_row(p.q_len - 1).begin > 0);
  spec.bound_right = right && (p.packed || band.keys_of_row(0).end < p.kv_len);
}

bool fits_tma(const ForwardProblem& p, const Strides& s, int64_t rows, int64_t heads) {
  const auto fits = [](int64_t stride) { return stride % 8 == 0 && stride >= 0; };
  return (rows <= 1 || (fits(s.row) && s.row > 0)) && (heads <= 1 || fits(s.head)) &&
         (p.packed || p.batch <= 1 || fits(s.batch));
}

void set_tile(KernelSpec& spec, LoopOrder order, int consumers, int block_n, int stages) {
  spec.order = order;
  spec.consumers = consumers;
  spec.block_n = block_n;
  spec.k_stages = spec.v_stages = stages;
  spec.q_buffers = 2;
}

// Tiles by padded head size; budgets and measurements in docs/forward-sm90.md. Philox needs
// registers that the overlapped order does not have.
void choose_tile(KernelSpec& spec) {
  const int columns = std::max(spec.qk_dim, spec.v_dim);
  if (columns <= 64) {
    set_tile(spec, LoopOrder::kSequential, 4, 64, 8);
  } else if (columns <= 128) {
    // Short or uneven block ranges and extra work on scores: three tiles that hide each other
    // (H200, d 128, TFLOP/s: window 527 -> 553, packed causal 595 -> 632, softcap 413 -> 437).
    const bool uneven = spec.bound_left || (spec.varlen && spec.bound_right);
    if (columns <= 96 || spec.dropout || spec.softcap || uneven) {
      set_tile(spec, LoopOrder::kSequential, 3, 64, 4);
    } else {
      set_tile(spec, LoopOrder::kOverlapped, 2, 128, 2);
    }
  } else if (columns <= 192) {
    set_tile(spec, spec.dropout ? LoopOrder::kSequential : LoopOrder::kOverlapped, 2, 64, 2);
  } else {
    set_tile(spec, spec.dropout ? LoopOrder::kSequential : LoopOrder::kOverlapped, 2, 64, 2);
    spec.q_buffers = 1;
  }
}

// Heads walked together, longest units first (docs, "Order"). Sections that are too small cannot
// balance their tail, sections that are too large lose the L2.
int choose_section(const ForwardProblem& p, const KernelSpec& spec) {
  if (!spec.bound_right && !spec.bound_left) return 1;
  const int64_t heads = (p.packed ? 1 : p.batch) * p.q_heads;
  const int64_t share = std::max<int64_t>(1, p.q_heads / std::max<int64_t>(1, p.kv_heads));
  const int columns = std::max(spec.qk_dim, spec.v_dim);
  int64_t section = columns <= 128 ? 16 : 32;
  if (columns <= 64) section = 128;
  section = std::max(section, share) / share * share;
  return static_cast<int>(std::clamp<int64_t>(section, 1, heads));
}

}  // namespace

std::vector<std::string> why_not_forward(const ForwardProblem& p, const DeviceFacts& facts) {
  std::vector<std::string> reasons;
  const auto refuse = [&](const std::string& reason) { reasons.push_back(reason); };
  if (facts.major != 9) refuse("forward_sm90 needs compute capability 9.0");
  if (p.head_dim > 256 || p.value_dim > 256) refuse("head_dim and value_dim go up to 256");
  if (p.q_len >= kMaxRows || p.kv_len >= kMaxRows) refuse("sequences go up to 2^29 rows");
  if (p.batch * p.q_heads * (p.q_len / kTileRows + 1) >= kMaxUnits) refuse("too many query tiles");
  const auto check_strides = [&](const char* name, const Strides& s, int64_t rows, int64_t heads) {
    if (!fits_tma(p, s, rows, heads)) {
      refuse(std::string(name) + ": TMA needs strides that are multiples of 16 bytes");
    }
  };
  check_strides("q", p.q, p.packed ? p.total_q : p.q_len, p.q_heads);
  check_strides("k", p.k, p.packed ? p.total_kv : p.kv_len, p.kv_heads);
  check_strides("v", p.v, p.packed ? p.total_kv : p.kv_len, p.kv_heads);
  return reasons;
}

ForwardPlan plan_forward(const ForwardProblem& p, const DeviceFacts& facts) {
  KernelSpec spec;
  spec.element = p.element;
  spec.qk_dim = round_up(static_cast<int>(p.head_dim), 16);
  spec.v_dim = round_up(static_cast<int>(p.value_dim), 16);
  set_bounds(spec, p);
  spec.varlen = p.packed;
  spec.lse = p.lse;
  spec.softcap = p.softcap > 0;
  spec.alibi = p.alibi;
  spec.sink = p.sink;
  spec.dropout = p.dropout.threshold != 0;
  // TMA stores whole 16-byte units: an odd value_dim would spill into the caller's padding.
  const int64_t q_rows = p.packed ? p.total_q : p.q_len;
  spec.direct_store = p.value_dim % 8 != 0 || !fits_tma(p, p.out, q_rows, p.q_heads);
  choose_tile(spec);
  return plan_with_spec(p, facts, spec, choose_section(p, spec));
}

ForwardPlan plan_with_spec(const ForwardProblem& p, const DeviceFacts& facts,
                           const KernelSpec& spec, int section_heads) {
  ForwardPlan plan;
  plan.problem = p;
  plan.spec = spec;
  plan.device = facts.device;
  const int64_t tiles = (p.q_len + kTileRows - 1) / kTileRows;
  const int64_t groups = (tiles + spec.consumers - 1) / spec.consumers;
  const int64_t units = groups * p.batch * p.q_heads;
  plan.groups = static_cast<int>(groups);
  plan.section_heads = section_heads;
  plan.unit_count = static_cast<int>(std::min<int64_t>(units, kMaxUnits));
  plan.grid = static_cast<int>(std::min<int64_t>(units, facts.multiprocessors));
  plan.why = std::to_string(spec.consumers) + " x 64 query rows, " + std::to_string(spec.block_n) +
             " keys, sections of " + std::to_string(section_heads) + " heads";
  return plan;
}

}  // namespace tilewise::gpu
