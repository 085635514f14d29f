// From a ForwardProblem to a ForwardPlan: which kernel and why not the other, which sides of the
// mask hide keys, which tile, order and section to take. Measurements behind the choices:
// docs/forward-sm90.md, docs/forward-mma.md.
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

// Why TMA cannot address a 16-bit tensor, or "".
std::string why_not_tma(const ForwardProblem& p, const Strides& s, int64_t rows, int64_t heads) {
  std::vector<int64_t> strides;
  if (rows > 1) strides.push_back(s.row);
  if (heads > 1) strides.push_back(s.head);
  if (!p.packed && p.batch > 1) strides.push_back(s.batch);
  if (rows > 1 && s.row == 0) return " rows have stride 0";
  for (const int64_t stride : strides) {
    if (stride % 8 != 0) return " rows are not 16-byte aligned, as TMA needs them";
    // TMA's strides are unsigned 40-bit numbers of bytes.
    if (stride < 0 || stride >= int64_t{1} << 39) return " has a stride that TMA cannot take";
  }
  return "";
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
void choose_tile_sm90(KernelSpec& spec) {
  const int columns = std::max(spec.qk_dim, spec.v_dim);
  if (columns <= 64) {
    set_tile(spec, LoopOrder::kSequential, 4, 64, 8);
  } else if (columns <= 128) {
    // Three overlapped tiles of 64 keys balance the uneven ranges of masks and hide the work of
    // softcap; two of 128 keys load least and are best without (docs, "Tried and rejected").
    const bool uneven = spec.bound_left || spec.bound_right;
    if (columns <= 96 || spec.dropout) {
      set_tile(spec, LoopOrder::kSequential, 3, 64, 4);
    } else if (uneven || spec.softcap) {
      set_tile(spec, LoopOrder::kOverlapped, 3, 64, 4);
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

// Registers allow 128 query rows up to 128 columns, shared memory decides the keys: as many as two
// CTAs of an SM can hold, else as many as one can (docs/forward-mma.md).
void choose_tile_mma(KernelSpec& spec, const ForwardProblem& p, const DeviceFacts& facts) {
  const bool fp32 = spec.element == Element::kFp32;
  const int columns = std::max(spec.qk_dim, spec.v_dim);
  // Window, softcap and ALiBi take the registers that more keys need, Philox those of a row tile.
  const bool extra = spec.bound_left || spec.softcap || spec.alibi;
  const int tiles = columns <= 128 && p.q_len > kTileRows && !spec.dropout ? 2 : 1;
  const int reserved = 1024;  // of every CTA, by the system
  const int half = (facts.shared_bytes + reserved) / 2 - reserved;
  const auto largest = [&](int most, int least, int limit) {
    for (spec.block_n = most; spec.block_n >= least; spec.block_n /= 2) {
      if (shape_of(spec).shared_bytes <= limit) return true;
    }
    return false;
  };
  set_tile(spec, LoopOrder::kSequential, tiles, 0, 2);
  spec.q_buffers = 1;
  int most = columns <= 64 && !extra ? 128 : 64;
  if (fp32 || (extra && columns > 64)) most = 32;
  if (!largest(most, fp32 ? 16 : 32, half)) largest(32, 8, facts.shared_bytes);
}

// Heads walked together, longest units first (docs, "Order"). Sections that are too small cannot
// balance their tail, sections that are too large lose the L2.
int choose_section(const ForwardProblem& p, const KernelSpec& spec) {
  if (!spec.bound_right && !spec.bound_left) return 1;
  const int64_t heads = (p.packed ? 1 : p.batch) * p.q_heads;
  const int64_t share = std::max<int64_t>(1, p.q_heads / std::max<int64_t>(1, p.kv_heads));
  const int columns = std::max(spec.qk_dim, spec.v_dim);
  int64_t section = columns <= 96 ? 16 : 32;
  if (columns <= 64) section = 128;
  section = std::max(section, share) / share * share;
  return static_cast<int>(std::clamp<int64_t>(section, 1, heads));
}

std::string capability(const DeviceFacts& facts) {
  return std::to_string(facts.major) + "." + std::to_string(facts.minor);
}

}  // namespace

std::vector<std::string> why_not_forward(const ForwardProblem& p, const DeviceFacts& facts) {
  std::vector<std::string> reasons;
  const auto refuse = [&](const std::string& reason) { reasons.push_back(reason); };
  if (facts.major < 8) {
    refuse("compute capability " + capability(facts) + ": the kernels need 8.0 or more");
  }
  if (p.head_dim > 256 || p.value_dim > 256) refuse("head_dim and value_dim go up to 256");
  if (p.q_len >= kMaxRows || p.kv_len >= kMaxRows) refuse("sequences go up to 2^29 rows");
  if (p.batch * p.q_heads * (p.q_len / kTileRows + 1) >= kMaxUnits) refuse("too many query tiles");
  return reasons;
}

std::vector<std::string> why_not_sm90(const ForwardProblem& p, const DeviceFacts& facts) {
  std::vector<std::string> reasons;
  if (facts.major != 9) {
    reasons.push_back("the GPU has compute capability " + capability(facts) + ", not 9.0");
  }
  if (p.element == Element::kFp32) {
    reasons.push_back("fp32 has no wgmma");
    return reasons;
  }
  const auto check = [&](const char* name, const Strides& s, int64_t rows, int64_t heads) {
    const std::string why = why_not_tma(p, s, rows, heads);
    if (!why.empty()) reasons.push_back(name + why);
  };
  check("q", p.q, p.packed ? p.total_q : p.q_len, p.q_heads);
  check("k", p.k, p.packed ? p.total_kv : p.kv_len, p.kv_heads);
  check("v", p.v, p.packed ? p.total_kv : p.kv_len, p.kv_heads);
  if (!p.aligned) reasons.push_back("a tensor does not start at a multiple of 16 bytes");
  return reasons;
}

ForwardPlan plan_forward(const ForwardProblem& p, const DeviceFacts& facts) {
  const std::vector<std::string> against = why_not_sm90(p, facts);
  const Family family = against.empty() ? Family::kForwardSm90 : Family::kForwardMma;
  ForwardPlan plan = plan_family(p, facts, family);
  std::string why = name_of(family);
  for (const std::string& reason : against) {
    why += (&reason == &against.front() ? " because " : " and ") + reason;
  }
  plan.why = why + "; " + plan.why;
  return plan;
}

ForwardPlan plan_family(const ForwardProblem& p, const DeviceFacts& facts, Family family) {
  KernelSpec spec;
  spec.family = family;
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
  if (family == Family::kForwardSm90) {
    // TMA stores whole 16-byte units: an odd value_dim would spill into the caller's padding.
    const int64_t q_rows = p.packed ? p.total_q : p.q_len;
    spec.direct_store = p.value_dim % 8 != 0 || !why_not_tma(p, p.out, q_rows, p.q_heads).empty();
    choose_tile_sm90(spec);
  } else {
    spec.schedule = Schedule::kStatic;
    choose_tile_mma(spec, p, facts);
  }
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
  // forward_sm90 stays on its SM. forward_mma has a CTA for each unit; packed units are counted on
  // the device, so there a CTA takes several, in turn.
  int64_t most = facts.multiprocessors;
  if (spec.family == Family::kForwardMma) most = p.packed ? 16 * most : units;
  plan.grid = static_cast<int>(std::min(units, most));
  plan.why = std::to_string(spec.consumers) + " x 64 query rows, " + std::to_string(spec.block_n) +
             " keys, sections of " + std::to_string(section_heads) + " heads";
  return plan;
}

}  // namespace tilewise::gpu
