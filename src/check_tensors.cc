// check_tensors(): the rules that need pointers, checked before a plan runs. Nothing is written
// before they hold: tensors are those of the plan, data is there and aligned to its elements,
// outputs overlap nothing, cu_seqlens in host memory are well formed.
#include <cstdint>

#include "error.h"
#include "problem.h"

namespace tilewise {

namespace {

void check_same_layout(const Problem& problem, Arg arg, const Tensor& tensor) {
  const auto operation = operation_of(problem.direction);
  const Tensor& planned = problem.layout(arg);
  if (planned.given() != tensor.given()) {
    throw_invalid(operation, name_of(arg), tensor.given() ? "given" : "not given",
                  planned.given() ? "a tensor" : "nothing", "the plan");
  }
  if (!planned.given()) return;
  bool same = planned.dtype == tensor.dtype && planned.device == tensor.device &&
              planned.ndim == tensor.ndim;
  for (size_t d = 0; same && d < static_cast<size_t>(planned.ndim); ++d) {
    same = planned.size[d] == tensor.size[d] &&
           (planned.size[d] == 1 || planned.stride[d] == tensor.stride[d]);
  }
  if (!same) {
    throw_invalid(operation, name_of(arg), "of another dtype, device, shape or stride",
                  "the layout it was planned with", "the plan");
  }
}

void check_data(const Problem& problem, Arg arg, const Tensor& tensor) {
  if (!tensor.given() || tensor.elements() == 0) return;
  const auto operation = operation_of(problem.direction);
  const std::string name = std::string(name_of(arg)) + ".data";
  if (tensor.data == nullptr) throw_invalid(operation, name, "null", "a pointer", "");
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (address % static_cast<uintptr_t>(size_of(tensor.dtype)) != 0) {
    throw_invalid(operation, name, "not aligned to its elements",
                  "a multiple of " + std::to_string(size_of(tensor.dtype)) + " bytes",
                  std::string(name_of(arg)) + ".dtype");
  }
}

// Bytes from the first element to the end of the last, over dimensions with a stride below `limit`.
int64_t extent_below(const Tensor& tensor, int64_t limit) {
  int64_t last = 0;
  for (size_t d = 0; d < static_cast<size_t>(tensor.ndim); ++d) {
    if (tensor.size[d] > 1 && tensor.stride[d] < limit) {
      last += (tensor.size[d] - 1) * tensor.stride[d];
    }
  }
  return (last + 1) * size_of(tensor.dtype);
}

bool steps_are_multiples(const Tensor& tensor, int64_t stride) {
  for (size_t d = 0; d < static_cast<size_t>(tensor.ndim); ++d) {
    if (tensor.size[d] > 1 && tensor.stride[d] >= stride && tensor.stride[d] % stride != 0) {
      return false;
    }
  }
  return true;
}

// Two tensors whose address ranges meet may still be interleaved, as d_q, d_k, d_v in one packed
// buffer: then, modulo one row of that buffer, they occupy disjoint intervals.
bool interleaved(const Tensor& a, const Tensor& b) {
  if (size_of(a.dtype) != size_of(b.dtype)) return false;
  const auto distance = reinterpret_cast<intptr_t>(b.data) - reinterpret_cast<intptr_t>(a.data);
  for (size_t d = 0; d < static_cast<size_t>(a.ndim); ++d) {
    const int64_t stride = a.stride[d];
    if (a.size[d] <= 1 || stride <= 0) continue;
    if (!steps_are_multiples(a, stride) || !steps_are_multiples(b, stride)) continue;
    const int64_t row_bytes = stride * size_of(a.dtype);
    const int64_t shift = ((distance % row_bytes) + row_bytes) % row_bytes;
    if (shift >= extent_below(a, stride) && shift + extent_below(b, stride) <= row_bytes) {
      return true;
    }
  }
  return false;
}

bool may_overlap(const Tensor& a, const Tensor& b) {
  const auto a_begin = reinterpret_cast<uintptr_t>(a.data);
  const auto b_begin = reinterpret_cast<uintptr_t>(b.data);
  const auto a_end = a_begin + static_cast<uintptr_t>(extent_below(a, INT64_MAX));
  const auto b_end = b_begin + static_cast<uintptr_t>(extent_below(b, INT64_MAX));
  if (a_end <= b_begin || b_end <= a_begin) return false;
  return !interleaved(a, b) && !interleaved(b, a);
}

void check_overlap(const Problem& problem, const Tensors& tensors) {
  for (int i = 0; i < kArgCount; ++i) {
    const Arg output = static_cast<Arg>(i);
    const Tensor& written = tensor_of(tensors, output);
    if (!is_written(problem.direction, output) || !written.given() || written.elements() == 0)
      continue;
    for (int j = 0; j < kArgCount; ++j) {
      const Arg other = static_cast<Arg>(j);
      const Tensor& tensor = tensor_of(tensors, other);
      if (i == j || !tensor.given() || tensor.elements() == 0) continue;
      if (may_overlap(written, tensor)) {
        throw_invalid(operation_of(problem.direction), name_of(output),
                      "overlapping " + std::string(name_of(other)), "memory of its own",
                      "it is an output");
      }
    }
  }
}

struct SequenceRule {
  Arg arg;
  int64_t total;
  int64_t longest;
  std::string_view total_source;
  std::string_view longest_source;
};

void check_sequences(const Problem& problem, const Tensor& tensor, const SequenceRule& rule) {
  const auto operation = operation_of(problem.direction);
  const auto* offsets = static_cast<const int32_t*>(tensor.data);
  const auto entry = [&](int64_t i) {
    return std::string(name_of(rule.arg)) + "[" + std::to_string(i) + "]";
  };
  if (offsets[0] != 0) {
    throw_invalid(operation, entry(0), std::to_string(offsets[0]), "0", "");
  }
  for (int64_t i = 0; i < problem.batch; ++i) {
    const int64_t len = int64_t{offsets[i + 1]} - offsets[i];
    if (len < 0) {
      throw_invalid(operation, entry(i + 1), std::to_string(offsets[i + 1]),
                    std::to_string(offsets[i]) + " or more", entry(i));
    }
    if (len > rule.longest) {
      throw_invalid(operation, entry(i + 1), std::to_string(offsets[i + 1]),
                    "at most " + std::to_string(offsets[i] + rule.longest), rule.longest_source);
    }
  }
  if (offsets[problem.batch] > rule.total) {
    throw_invalid(operation, entry(problem.batch), std::to_string(offsets[problem.batch]),
                  "at most " + std::to_string(rule.total), rule.total_source);
  }
}

}  // namespace

void check_tensors(const Problem& problem, const Tensors& tensors) {
  for (int i = 0; i < kArgCount; ++i) {
    const Arg arg = static_cast<Arg>(i);
    check_same_layout(problem, arg, tensor_of(tensors, arg));
    check_data(problem, arg, tensor_of(tensors, arg));
  }
  check_overlap(problem, tensors);
  if (problem.packed && problem.device.type == DeviceType::cpu) {
    check_sequences(problem, tensors.cu_seqlens_q,
                    {Arg::cu_seqlens_q, problem.total_q, problem.q_len, "q.size[0]", "max_q_len"});
    check_sequences(
        problem, tensors.cu_seqlens_kv,
        {Arg::cu_seqlens_kv, problem.total_kv, problem.kv_len, "k.size[0]", "max_kv_len"});
  }
}

}  // namespace tilewise
