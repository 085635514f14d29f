// Shapes and strides for each layout of a Case.
#include "case/layout.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace tilewise {

namespace {

// A stream of small random numbers for gaps and orders; independent of the data.
class Dice {
 public:
  Dice(uint64_t seed, Arg arg)
      : state_(mix_bits(seed ^ 0x6A70AD0FC0FFEE00u) + static_cast<uint64_t>(arg) * 977) {}
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(mix_bits(state_++) % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

using Sizes = std::vector<int64_t>;

int64_t total_of(const std::vector<int64_t>& lens) {
  return std::accumulate(lens.begin(), lens.end(), kTailRows);
}

bool is_per_row(Arg arg) { return arg == Arg::lse || arg == Arg::d_lse; }
bool is_query_side(Arg arg) {
  return arg == Arg::q || arg == Arg::d_q || arg == Arg::out || arg == Arg::d_out;
}
bool is_key(Arg arg) { return arg == Arg::k || arg == Arg::d_k; }

// Logical sizes, in the order of the API.
Sizes sizes_of(const Case& c, Arg arg) {
  switch (arg) {
    case Arg::cu_seqlens_q:
    case Arg::cu_seqlens_kv:
      return {c.b + 1};
    case Arg::sink:
    case Arg::d_sink:
      return {c.hq};
    case Arg::alibi_slopes:
      return c.alibi == CaseSlopes::per_batch_head ? Sizes{c.b, c.hq} : Sizes{c.hq};
    default:
      break;
  }
  if (is_per_row(arg)) return c.packed() ? Sizes{c.hq, total_of(c.qlens)} : Sizes{c.b, c.hq, c.q};
  const bool queries = is_query_side(arg);
  const int64_t heads = queries ? c.hq : c.hkv;
  const int64_t dim = arg == Arg::q || arg == Arg::d_q || is_key(arg) ? c.d : c.dv;
  if (c.packed()) return {total_of(queries ? c.qlens : c.kvlens), heads, dim};
  return {c.b, queries ? c.q : c.kv, heads, dim};
}

DType dtype_of(const Case& c, Arg arg) {
  switch (arg) {
    case Arg::cu_seqlens_q:
    case Arg::cu_seqlens_kv:
      return DType::i32;
    case Arg::lse:
    case Arg::d_lse:
    case Arg::sink:
    case Arg::d_sink:
    case Arg::alibi_slopes:
      return DType::f32;
    default:
      return c.dtype;
  }
}

Tensor shaped(const Case& c, Arg arg) {
  Tensor tensor;
  tensor.dtype = dtype_of(c, arg);
  const Sizes sizes = sizes_of(c, arg);
  tensor.ndim = static_cast<int32_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), tensor.size.begin());
  return tensor;
}

// Dimensions from outermost to innermost in memory.
using Order = std::vector<size_t>;

Order plain_order(const Tensor& tensor) {
  Order order(static_cast<size_t>(tensor.ndim));
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

// Sets the strides of nested dimensions, `gap(dim)` elements after each; returns the extent.
template <class Gap>
int64_t nest(Tensor& tensor, const Order& order, const Gap& gap) {
  int64_t step = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    tensor.stride[*dim] = step;
    step *= std::max<int64_t>(tensor.size[*dim], 1);
    step += gap(*dim);
  }
  return step;
}

// Distance of the last element, plus one.
int64_t extent_of(const Tensor& tensor) {
  int64_t last = 0;
  for (size_t dim = 0; dim < static_cast<size_t>(tensor.ndim); ++dim) {
    if (tensor.size[dim] == 0) return 0;
    if (tensor.size[dim] > 1) last += (tensor.size[dim] - 1) * tensor.stride[dim];
  }
  return last + 1;
}

// The stride of a dimension of size 1 is ignored, whatever it is.
void scramble_unused_strides(Tensor& tensor, Dice& dice) {
  constexpr std::array<int64_t, 6> kNonsense = {0, 3331333, 99990001, -7, INT64_MAX, INT64_MIN};
  for (size_t dim = 0; dim < static_cast<size_t>(tensor.ndim); ++dim) {
    if (tensor.size[dim] == 1) {
      tensor.stride[dim] = kNonsense[static_cast<size_t>(dice.below(kNonsense.size()))];
    }
  }
}

// Random order of the outer dimensions, random gaps, and for inputs sometimes a broadcast head or
// batch entry (stride 0).
Placement::View strided_view(const Case& c, Arg arg) {
  Dice dice(c.seed, arg);
  Tensor tensor = shaped(c, arg);
  Order order = plain_order(tensor);
  for (size_t i = order.size() - 1; i > 1; --i) {  // the innermost stays
    std::swap(order[i - 1], order[static_cast<size_t>(dice.below(static_cast<int64_t>(i)))]);
  }
  nest(tensor, order, [&](size_t) { return dice.below(3) == 0 ? 0 : dice.below(9); });
  if (!is_output(arg)) {
    for (size_t dim = 0; dim + 1 < static_cast<size_t>(tensor.ndim); ++dim) {
      const bool is_rows = tensor.ndim > 2 && dim == (c.packed() ? 0 : 1);
      if (!is_rows && tensor.size[dim] > 1 && dice.below(10) == 0) tensor.stride[dim] = 0;
    }
  }
  const int64_t offset = dice.below(4);
  scramble_unused_strides(tensor, dice);
  return {arg, tensor, offset};
}

Placement::View plain_view(const Case& c, Arg arg) {
  Tensor tensor = shaped(c, arg);
  Order order = plain_order(tensor);
  const bool has_heads = tensor.dtype == c.dtype && tensor.ndim >= 3 && !is_per_row(arg);
  if (c.layout == CaseLayout::bhsd && has_heads)
    std::swap(order[order.size() - 3], order[order.size() - 2]);
  nest(tensor, order, [](size_t) { return 0; });
  return {arg, tensor, 0};
}

Placement placement_of(const Placement::View& view) {
  Placement placement;
  placement.views = {view};
  placement.dtype = view.tensor.dtype;
  placement.elements = view.offset + extent_of(view.tensor);
  return placement;
}

// [b, s, hq + 2 hkv, d] or [total, hq + 2 hkv, d], three views.
Placement packed_qkv(const Case& c, const std::array<Arg, 3>& args) {
  Placement placement;
  placement.dtype = c.dtype;
  const int64_t row = (c.hq + 2 * c.hkv) * c.d;
  const int64_t rows = c.packed() ? total_of(c.qlens) : c.b * c.q;
  placement.elements = row * rows;
  int64_t offset = 0;
  for (const Arg arg : args) {
    Tensor tensor = shaped(c, arg);
    const auto heads = static_cast<size_t>(tensor.ndim) - 2;
    tensor.stride[heads + 1] = 1;
    tensor.stride[heads] = c.d;
    tensor.stride[heads - 1] = row;
    if (!c.packed()) tensor.stride[0] = row * c.q;
    if (uses(c, arg)) placement.views.push_back({arg, tensor, offset});
    offset += tensor.size[heads] * c.d;
  }
  return placement;
}

bool wants(const Case& c, std::string_view gradient) {
  return c.want.empty() || std::find(c.want.begin(), c.want.end(), gradient) != c.want.end();
}

}  // namespace

bool uses(const Case& c, Arg arg) {
  const bool backward = c.dir == Direction::backward;
  switch (arg) {
    case Arg::lse:
      return c.lse;
    case Arg::d_out:
      return backward;
    case Arg::d_lse:
      return backward && c.dlse;
    case Arg::d_q:
      return backward && wants(c, "dq");
    case Arg::d_k:
      return backward && wants(c, "dk");
    case Arg::d_v:
      return backward && wants(c, "dv");
    case Arg::d_sink:
      return backward && c.sink && wants(c, "dsink");
    case Arg::alibi_slopes:
      return c.alibi != CaseSlopes::none;
    case Arg::sink:
      return c.sink;
    case Arg::cu_seqlens_q:
    case Arg::cu_seqlens_kv:
      return c.packed();
    default:
      return true;
  }
}

bool is_output(Arg arg) {
  return arg == Arg::out || arg == Arg::lse || arg == Arg::d_q || arg == Arg::d_k ||
         arg == Arg::d_v || arg == Arg::d_sink;
}

std::vector<Placement> placements_of(const Case& c) {
  std::vector<Placement> placements;
  const bool shared = c.layout == CaseLayout::packed_qkv;
  if (shared) {
    placements.push_back(packed_qkv(c, {Arg::q, Arg::k, Arg::v}));
    Placement gradients = packed_qkv(c, {Arg::d_q, Arg::d_k, Arg::d_v});
    if (!gradients.views.empty()) placements.push_back(std::move(gradients));
  }
  for (int i = 0; i < kArgCount; ++i) {
    const Arg arg = static_cast<Arg>(i);
    const bool in_shared = arg == Arg::q || arg == Arg::k || arg == Arg::v || arg == Arg::d_q ||
                           arg == Arg::d_k || arg == Arg::d_v;
    if (!uses(c, arg) || (shared && in_shared)) continue;
    const bool offsets = arg == Arg::cu_seqlens_q || arg == Arg::cu_seqlens_kv;
    placements.push_back(placement_of(
        c.layout == CaseLayout::strided && !offsets ? strided_view(c, arg) : plain_view(c, arg)));
  }
  return placements;
}

namespace {

void visit_vector(const Tensor& tensor, const ElementVisitor& visit) {
  if (tensor.ndim == 1) {
    for (int64_t h = 0; h < tensor.size[0]; ++h) visit(h, {0, 0, h, 0});
    return;
  }
  for (int64_t b = 0; b < tensor.size[0]; ++b) {  // slopes [b, h]
    for (int64_t h = 0; h < tensor.size[1]; ++h) visit(b * tensor.stride[0] + h, {b, 0, h, 0});
  }
}

struct RowStrides {
  int64_t sequence = 0;
  int64_t row = 0;
  int64_t head = 0;
  int64_t heads = 0;
  int64_t columns = 1;
};

RowStrides row_strides(const Case& c, Arg arg, const Tensor& tensor) {
  const size_t first = c.packed() ? 0 : 1;
  RowStrides strides;
  strides.sequence = c.packed() ? 0 : tensor.stride[0];
  if (is_per_row(arg)) {
    strides.head = tensor.stride[first];
    strides.heads = tensor.size[first];
    strides.row = 1;
    return strides;
  }
  strides.row = tensor.stride[first];
  strides.head = tensor.stride[first + 1];
  strides.heads = tensor.size[first + 1];
  strides.columns = tensor.size[first + 2];
  return strides;
}

}  // namespace

void for_each_element(const Case& c, Arg arg, const Tensor& tensor, const ElementVisitor& visit) {
  const Sizes sizes = sizes_of(c, arg);
  if (sizes.size() < 2 || arg == Arg::alibi_slopes) return visit_vector(tensor, visit);
  const RowStrides strides = row_strides(c, arg, tensor);
  const bool queries = is_query_side(arg) || is_per_row(arg);
  int64_t begin = 0;  // of the sequence, in packed rows
  for (int64_t b = 0; b < c.b; ++b) {
    const auto s = static_cast<size_t>(b);
    const int64_t len = c.packed() ? (queries ? c.qlens[s] : c.kvlens[s]) : (queries ? c.q : c.kv);
    for (int64_t i = 0; i < len; ++i) {
      for (int64_t h = 0; h < strides.heads; ++h) {
        const int64_t first = b * strides.sequence + (begin + i) * strides.row + h * strides.head;
        for (int64_t d = 0; d < strides.columns; ++d) visit(first + d, {b, i, h, d});
      }
    }
    if (c.packed()) begin += len;
  }
}

}  // namespace tilewise
