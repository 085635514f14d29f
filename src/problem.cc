// Problem: from tensors and options to sizes. check() (check.cc) holds the rules.
#include "problem.h"

#include <cmath>

namespace tilewise {

namespace {

struct ArgField {
  std::string_view name;
  Tensor Tensors::*field;
};

// In the order of Arg.
constexpr ArgField kArgFields[kArgCount] = {
    {"q", &Tensors::q},
    {"k", &Tensors::k},
    {"v", &Tensors::v},
    {"out", &Tensors::out},
    {"lse", &Tensors::lse},
    {"d_out", &Tensors::d_out},
    {"d_lse", &Tensors::d_lse},
    {"d_q", &Tensors::d_q},
    {"d_k", &Tensors::d_k},
    {"d_v", &Tensors::d_v},
    {"d_sink", &Tensors::d_sink},
    {"alibi_slopes", &Tensors::alibi_slopes},
    {"sink", &Tensors::sink},
    {"cu_seqlens_q", &Tensors::cu_seqlens_q},
    {"cu_seqlens_kv", &Tensors::cu_seqlens_kv},
};

// Sizes as they stand, right or wrong: check() compares them afterwards.
void read_sizes(Problem& problem) {
  const Tensor& q = problem.layout(Arg::q);
  const Tensor& k = problem.layout(Arg::k);
  const Tensor& v = problem.layout(Arg::v);
  problem.packed = problem.has(Arg::cu_seqlens_q) || problem.has(Arg::cu_seqlens_kv);
  problem.dtype = q.dtype;
  problem.device = q.device;
  const size_t heads = problem.packed ? 1 : 2;
  problem.q_heads = q.size[heads];
  problem.head_dim = q.size[heads + 1];
  problem.kv_heads = k.size[heads];
  problem.value_dim = v.size[heads + 1];
  if (problem.packed) {
    const int64_t offsets = problem.layout(Arg::cu_seqlens_q).size[0];
    problem.batch = offsets > 0 ? offsets - 1 : 0;  // check() refuses a vector without offsets
    problem.total_q = q.size[0];
    problem.total_kv = k.size[0];
    const Options& options = problem.options;
    problem.q_len = options.max_q_len > 0 ? options.max_q_len : problem.total_q;
    problem.kv_len = options.max_kv_len > 0 ? options.max_kv_len : problem.total_kv;
  } else {
    problem.batch = q.size[0];
    problem.q_len = q.size[1];
    problem.kv_len = k.size[1];
  }
}

}  // namespace

std::string_view name_of(Arg arg) { return kArgFields[static_cast<size_t>(arg)].name; }

std::string_view operation_of(Direction direction) {
  return direction == Direction::forward ? "tilewise::forward" : "tilewise::backward";
}

bool is_written(Direction direction, Arg arg) {
  if (direction == Direction::forward) return arg == Arg::out || arg == Arg::lse;
  return arg == Arg::d_q || arg == Arg::d_k || arg == Arg::d_v || arg == Arg::d_sink;
}

const Tensor& tensor_of(const Tensors& tensors, Arg arg) {
  return tensors.*(kArgFields[static_cast<size_t>(arg)].field);
}

Tensor& tensor_of(Tensors& tensors, Arg arg) {
  return tensors.*(kArgFields[static_cast<size_t>(arg)].field);
}

Tensors without_idle_strides(const Tensors& tensors) {
  Tensors result = tensors;
  for (const ArgField& arg : kArgFields) {
    Tensor& tensor = result.*(arg.field);
    for (int32_t dim = 0; dim < tensor.ndim && dim < kMaxDims; ++dim) {
      const auto d = static_cast<size_t>(dim);
      if (tensor.size[d] == 1) tensor.stride[d] = dim == tensor.ndim - 1 ? 1 : 0;
    }
  }
  return result;
}

int alignment_of(const Tensors& tensors) {
  uintptr_t bits = 16;
  for (const Tensor* tensor : {&tensors.q, &tensors.k, &tensors.v, &tensors.out}) {
    bits |= reinterpret_cast<uintptr_t>(tensor->data);
  }
  return static_cast<int>(bits & -bits);
}

semantics::MaskRule Problem::mask_rule() const {
  const Mask& mask = options.mask;
  return {mask.left, mask.right, static_cast<int>(mask.alignment), mask.offset};
}

semantics::Dropout Problem::dropout() const {
  return semantics::make_dropout(options.dropout, options.seed, options.dropout_offset);
}

Problem make_problem(Direction direction, const Tensors& tensors, const Options& options) {
  Problem problem;
  problem.direction = direction;
  problem.options = options;
  problem.alignment = alignment_of(tensors);
  const Tensors given = without_idle_strides(tensors);
  for (int i = 0; i < kArgCount; ++i) {
    Tensor& layout = problem.layouts[static_cast<size_t>(i)];
    layout = tensor_of(given, static_cast<Arg>(i));
    layout.data = nullptr;
  }
  read_sizes(problem);
  check(problem);
  // Only now are the sizes known to fit.
  if (!problem.packed) {
    problem.total_q = problem.batch * problem.q_len;
    problem.total_kv = problem.batch * problem.kv_len;
  }
  problem.scale = options.scale.has_value()
                      ? *options.scale
                      : 1.0 / std::sqrt(static_cast<double>(problem.head_dim));
  return problem;
}

}  // namespace tilewise
