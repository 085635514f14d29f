// check(): every user-facing rule about presence, dtypes, devices, shapes, strides and options. The
// first broken rule throws; nothing has been touched by then. Rows of docs/contracts.md.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "error.h"
#include "problem.h"

namespace tilewise {

namespace {

constexpr int64_t kMaxHeadDim = 256;
// Element offsets stay below this, so that sums of offsets never overflow int64.
constexpr int64_t kMaxExtent = int64_t{1} << 60;

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string size_name(Arg arg, int dim) {
  return std::string(name_of(arg)) + ".size[" + std::to_string(dim) + "]";
}

void check_presence(const Problem& problem) {
  const auto operation = operation_of(problem.direction);
  const bool backward = problem.direction == Direction::backward;
  for (const Arg arg : {Arg::q, Arg::k, Arg::v, Arg::out}) {
    if (!problem.has(arg)) throw_invalid(operation, name_of(arg), "not given", "a tensor", "");
  }
  for (const Arg arg : {Arg::lse, Arg::d_out}) {
    if (backward && !problem.has(arg)) {
      throw_invalid(operation, name_of(arg), "not given", "a tensor", "dir=bwd");
    }
  }
  bool any_gradient = false;
  for (const Arg arg : {Arg::d_out, Arg::d_lse, Arg::d_q, Arg::d_k, Arg::d_v, Arg::d_sink}) {
    any_gradient = any_gradient || (is_written(Direction::backward, arg) && problem.has(arg));
    if (!backward && problem.has(arg)) {
      throw_invalid(operation, name_of(arg), "given", "nothing", "dir=fwd");
    }
  }
  if (backward && !any_gradient) {
    throw_invalid(operation, "gradient", "not given", "at least one of d_q, d_k, d_v, d_sink", "");
  }
  if (problem.has(Arg::d_sink) && !problem.has(Arg::sink)) {
    throw_invalid(operation, "sink", "not given", "a tensor", "d_sink is given");
  }
  for (const auto& [given, missing] : {std::pair(Arg::cu_seqlens_q, Arg::cu_seqlens_kv),
                                       std::pair(Arg::cu_seqlens_kv, Arg::cu_seqlens_q)}) {
    if (problem.has(given) && !problem.has(missing)) {
      throw_invalid(operation, name_of(missing), "not given", "a tensor",
                    std::string(name_of(given)) + " is given");
    }
  }
}

void check_dtypes(const Problem& problem) {
  const auto operation = operation_of(problem.direction);
  const DType main = problem.dtype;
  if (main != DType::f32 && main != DType::bf16 && main != DType::f16) {
    throw_invalid(operation, "q.dtype", name_of(main), "fp32, bf16 or fp16", "");
  }
  for (int i = 0; i < kArgCount; ++i) {
    const Arg arg = static_cast<Arg>(i);
    if (!problem.has(arg)) continue;
    DType expected = main;
    std::string_view source = "q.dtype";
    switch (arg) {
      case Arg::lse:
      case Arg::d_lse:
      case Arg::d_sink:
      case Arg::alibi_slopes:
      case Arg::sink:
        expected = DType::f32;
        source = "";
        break;
      case Arg::cu_seqlens_q:
      case Arg::cu_seqlens_kv:
        expected = DType::i32;
        source = "";
        break;
      default:
        break;
    }
    const DType got = problem.layout(arg).dtype;
    if (got != expected) {
      throw_invalid(operation, std::string(name_of(arg)) + ".dtype", name_of(got),
                    name_of(expected), source);
    }
  }
}

std::string text_of(const Device& device) {
  if (device.type == DeviceType::cpu) return "cpu";
  if (device.type == DeviceType::cuda) return "cuda:" + std::to_string(device.id);
  return "unknown device type " + std::to_string(static_cast<int>(device.type));
}

void check_devices(const Problem& problem) {
  const auto operation = operation_of(problem.direction);
  if (problem.device.type != DeviceType::cpu && problem.device.type != DeviceType::cuda) {
    throw_invalid(operation, "q.device", text_of(problem.device), "cpu or cuda", "");
  }
  for (int i = 0; i < kArgCount; ++i) {
    const Tensor& layout = problem.layouts[static_cast<size_t>(i)];
    if (layout.given() && layout.device != problem.device) {
      throw_invalid(operation, std::string(name_of(static_cast<Arg>(i))) + ".device",
                    text_of(layout.device), text_of(problem.device), "q.device");
    }
  }
}

// The shape of one argument: up to four expected sizes, each with the place it comes from.
struct ExpectedSize {
  int64_t size;
  std::string_view source;
};

void check_shape(const Problem& problem, Arg arg, std::initializer_list<ExpectedSize> expected) {
  if (!problem.has(arg)) return;
  const auto operation = operation_of(problem.direction);
  const Tensor& layout = problem.layout(arg);
  if (layout.ndim != static_cast<int32_t>(expected.size())) {
    throw_invalid(operation, std::string(name_of(arg)) + ".ndim", std::to_string(layout.ndim),
                  std::to_string(expected.size()),
                  problem.packed ? "a packed batch: cu_seqlens are given" : "a dense batch");
  }
  int dim = 0;
  for (const ExpectedSize& want : expected) {
    const int64_t got = layout.size[static_cast<size_t>(dim)];
    if (got != want.size) {
      throw_invalid(operation, size_name(arg, dim), std::to_string(got), std::to_string(want.size),
                    want.source);
    }
    ++dim;
  }
}

void check_ranges(const Problem& problem) {
  const auto operation = operation_of(problem.direction);
  const int rank = problem.packed ? 3 : 4;
  for (const Arg arg : {Arg::q, Arg::k, Arg::v}) {
    const Tensor& layout = problem.layout(arg);
    if (layout.ndim != rank) {
      throw_invalid(operation, std::string(name_of(arg)) + ".ndim", std::to_string(layout.ndim),
                    problem.packed ? "3: [total, heads, dim]" : "4: [batch, len, heads, dim]",
                    problem.packed ? "cu_seqlens are given" : "cu_seqlens are not given");
    }
    for (int dim = 0; dim < rank; ++dim) {
      const int64_t size = layout.size[static_cast<size_t>(dim)];
      if (size < 0) {
        throw_invalid(operation, size_name(arg, dim), std::to_string(size), "0 or more", "");
      }
    }
  }
  const auto check_dim = [&](Arg arg, int64_t size) {
    if (size < 1 || size > kMaxHeadDim) {
      throw_invalid(operation, size_name(arg, rank - 1), std::to_string(size), "1..256", "");
    }
  };
  check_dim(Arg::q, problem.head_dim);
  check_dim(Arg::v, problem.value_dim);
  if (problem.kv_heads == 0 ? problem.q_heads != 0 : problem.q_heads % problem.kv_heads != 0) {
    throw_invalid(operation, "q_heads", std::to_string(problem.q_heads),
                  "a multiple of kv_heads " + std::to_string(problem.kv_heads),
                  size_name(Arg::k, rank - 2));
  }
  if (problem.packed) {
    for (const Arg arg : {Arg::cu_seqlens_q, Arg::cu_seqlens_kv}) {
      const Tensor& layout = problem.layout(arg);
      if (layout.ndim != 1 || layout.size[0] < 1) {
        throw_invalid(operation, name_of(arg),
                      layout.ndim != 1 ? std::to_string(layout.ndim) + "-dimensional" : "empty",
                      "a vector of batch + 1 offsets", "");
      }
    }
  }
}

void check_dense_shapes(const Problem& problem) {
  const ExpectedSize batch{problem.batch, "q.size[0]"};
  const ExpectedSize q_len{problem.q_len, "q.size[1]"};
  const ExpectedSize kv_len{problem.kv_len, "k.size[1]"};
  const ExpectedSize q_heads{problem.q_heads, "q.size[2]"};
  const ExpectedSize kv_heads{problem.kv_heads, "k.size[2]"};
  const ExpectedSize head_dim{problem.head_dim, "q.size[3]"};
  const ExpectedSize value_dim{problem.value_dim, "v.size[3]"};
  for (const Arg arg : {Arg::q, Arg::d_q}) {
    check_shape(problem, arg, {batch, q_len, q_heads, head_dim});
  }
  for (const Arg arg : {Arg::k, Arg::d_k}) {
    check_shape(problem, arg, {batch, kv_len, kv_heads, head_dim});
  }
  for (const Arg arg : {Arg::v, Arg::d_v}) {
    check_shape(problem, arg, {batch, kv_len, kv_heads, value_dim});
  }
  for (const Arg arg : {Arg::out, Arg::d_out}) {
    check_shape(problem, arg, {batch, q_len, q_heads, value_dim});
  }
  for (const Arg arg : {Arg::lse, Arg::d_lse}) {
    check_shape(problem, arg, {batch, q_heads, q_len});
  }
}

void check_packed_shapes(const Problem& problem) {
  const ExpectedSize total_q{problem.total_q, "q.size[0]"};
  const ExpectedSize total_kv{problem.total_kv, "k.size[0]"};
  const ExpectedSize q_heads{problem.q_heads, "q.size[1]"};
  const ExpectedSize kv_heads{problem.kv_heads, "k.size[1]"};
  const ExpectedSize head_dim{problem.head_dim, "q.size[2]"};
  const ExpectedSize value_dim{problem.value_dim, "v.size[2]"};
  for (const Arg arg : {Arg::q, Arg::d_q}) {
    check_shape(problem, arg, {total_q, q_heads, head_dim});
  }
  for (const Arg arg : {Arg::k, Arg::d_k}) {
    check_shape(problem, arg, {total_kv, kv_heads, head_dim});
  }
  for (const Arg arg : {Arg::v, Arg::d_v}) {
    check_shape(problem, arg, {total_kv, kv_heads, value_dim});
  }
  for (const Arg arg : {Arg::out, Arg::d_out}) {
    check_shape(problem, arg, {total_q, q_heads, value_dim});
  }
  for (const Arg arg : {Arg::lse, Arg::d_lse}) check_shape(problem, arg, {q_heads, total_q});
  check_shape(problem, Arg::cu_seqlens_kv, {{problem.batch + 1, "cu_seqlens_q.size[0]"}});
}

void check_head_vectors(const Problem& problem) {
  const std::string_view source = problem.packed ? "q.size[1]" : "q.size[2]";
  const ExpectedSize q_heads{problem.q_heads, source};
  check_shape(problem, Arg::sink, {q_heads});
  check_shape(problem, Arg::d_sink, {q_heads});
  if (problem.layout(Arg::alibi_slopes).ndim == 2) {
    const ExpectedSize batch{problem.batch, problem.packed ? "cu_seqlens_q" : "q.size[0]"};
    check_shape(problem, Arg::alibi_slopes, {batch, q_heads});
  } else {
    check_shape(problem, Arg::alibi_slopes, {q_heads});
  }
}

// No two elements share memory: sorted by stride, each dimension steps over all the inner ones.
bool nests(const Tensor& layout) {
  int64_t inner_extent = 0;
  std::array<bool, kMaxDims> used{};
  for (int step = 0; step < layout.ndim; ++step) {
    int next = -1;
    for (int dim = 0; dim < layout.ndim; ++dim) {
      const auto d = static_cast<size_t>(dim);
      if (used[d]) continue;
      if (next < 0 || layout.stride[d] < layout.stride[static_cast<size_t>(next)]) next = dim;
    }
    const auto n = static_cast<size_t>(next);
    used[n] = true;
    if (layout.size[n] <= 1) continue;
    if (layout.stride[n] <= inner_extent) return false;
    inner_extent += (layout.size[n] - 1) * layout.stride[n];
  }
  return true;
}

void check_strides(const Problem& problem, Arg arg) {
  const auto operation = operation_of(problem.direction);
  const Tensor& layout = problem.layout(arg);
  if (layout.elements() == 0) return;
  int64_t extent = 0;
  for (int dim = 0; dim < layout.ndim; ++dim) {
    const auto d = static_cast<size_t>(dim);
    if (layout.size[d] == 1) continue;
    const std::string name = std::string(name_of(arg)) + ".stride[" + std::to_string(dim) + "]";
    const std::string got = std::to_string(layout.stride[d]);
    if (dim == layout.ndim - 1 && layout.stride[d] != 1) {
      throw_invalid(operation, name, got, "1", "the innermost dimension must be contiguous");
    }
    if (layout.stride[d] < 0) throw_invalid(operation, name, got, "0 or more", "");
    int64_t step = 0;
    if (__builtin_mul_overflow(layout.size[d] - 1, layout.stride[d], &step) ||
        __builtin_add_overflow(extent, step, &extent) || extent > kMaxExtent) {
      throw_invalid(operation, name, got, "offsets below 2^60 elements",
                    size_name(arg, dim) + " is " + std::to_string(layout.size[d]));
    }
  }
  if (is_written(problem.direction, arg) && !nests(layout)) {
    throw_invalid(operation, std::string(name_of(arg)) + ".stride", "overlapping itself",
                  "strides that give each element its own memory", "it is an output");
  }
}

// Products that later code forms without looking: elements of a tensor, rows, heads.
void check_counts(const Problem& problem) {
  const auto at_least_one = [](int64_t a, int64_t b) { return std::max({a, b, int64_t{1}}); };
  const int64_t batch = problem.packed ? 1 : at_least_one(problem.batch, 1);
  const int64_t len = problem.packed ? at_least_one(problem.total_q, problem.total_kv)
                                     : at_least_one(problem.q_len, problem.kv_len);
  const int64_t heads = at_least_one(problem.q_heads, problem.kv_heads);
  int64_t elements = 0;
  if (__builtin_mul_overflow(batch, heads, &elements) ||
      __builtin_mul_overflow(elements, len, &elements) ||
      __builtin_mul_overflow(elements, kMaxHeadDim, &elements) || elements > kMaxExtent ||
      problem.q_len > kMaxExtent / kMaxHeadDim || problem.kv_len > kMaxExtent / kMaxHeadDim) {
    throw_invalid(operation_of(problem.direction), "batch * heads * len", "too large",
                  "below 2^52 rows", "");
  }
}

void check_mask(const Problem& problem) {
  const auto operation = operation_of(problem.direction);
  const Mask& mask = problem.options.mask;
  const std::string_view windows = "-1 (unbounded) or more";
  if (mask.left < -1) {
    throw_invalid(operation, "mask.left", std::to_string(mask.left), windows, "");
  }
  if (mask.right < -1) {
    throw_invalid(operation, "mask.right", std::to_string(mask.right), windows, "");
  }
  const auto alignment = static_cast<int>(mask.alignment);
  if (alignment < 0 || alignment > 2) {
    throw_invalid(operation, "mask.alignment", std::to_string(alignment),
                  "bottom_right, top_left or at_offset", "");
  }
  if (mask.offset != 0 && mask.alignment != Alignment::at_offset) {
    throw_invalid(operation, "mask.offset", std::to_string(mask.offset), "0",
                  "mask.alignment is not at_offset");
  }
}

void check_options(const Problem& problem) {
  const auto operation = operation_of(problem.direction);
  const Options& options = problem.options;
  if (options.scale.has_value() && !(std::isfinite(*options.scale) && *options.scale > 0)) {
    throw_invalid(operation, "scale", text_of(*options.scale), "finite and > 0", "");
  }
  if (!(std::isfinite(options.softcap) && options.softcap >= 0)) {
    throw_invalid(operation, "softcap", text_of(options.softcap), "finite and >= 0", "");
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    throw_invalid(operation, "dropout", text_of(options.dropout), "in [0, 1)", "");
  }
  const auto determinism = static_cast<int>(options.determinism);
  if (determinism < 0 || determinism > 1) {
    throw_invalid(operation, "determinism", std::to_string(determinism), "any or bitwise", "");
  }
  for (const auto& [name, value] :
       {std::pair("max_q_len", options.max_q_len), std::pair("max_kv_len", options.max_kv_len)}) {
    if (value < 0) throw_invalid(operation, name, std::to_string(value), "0 or more", "");
    if (value != 0 && !problem.packed) {
      throw_invalid(operation, name, std::to_string(value), "0", "the batch is not packed");
    }
  }
  // Philox counts rows and heads in 32 bits and keys in groups of four.
  const int64_t limit = int64_t{1} << 32;
  if (options.dropout > 0 && (problem.q_len > limit || problem.kv_len / 4 > limit ||
                              (problem.q_heads > 0 && problem.batch > limit / problem.q_heads))) {
    throw_invalid(operation, "dropout", "on for a problem beyond its counters",
                  "q_len and batch * q_heads up to 2^32, kv_len up to 2^34", "Philox4x32");
  }
}

}  // namespace

void check(const Problem& problem) {
  check_presence(problem);
  check_dtypes(problem);
  check_devices(problem);
  check_ranges(problem);
  problem.packed ? check_packed_shapes(problem) : check_dense_shapes(problem);
  check_head_vectors(problem);
  check_counts(problem);  // before strides, whose rules multiply sizes
  for (int i = 0; i < kArgCount; ++i) {
    if (problem.layouts[static_cast<size_t>(i)].given()) {
      check_strides(problem, static_cast<Arg>(i));
    }
  }
  check_mask(problem);
  check_options(problem);
}

}  // namespace tilewise
