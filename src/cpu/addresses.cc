// Tensors of any layout to addresses of rows; see addresses.h.
#include "cpu/addresses.h"

namespace tilewise::cpu {

Sequence Addresses::sequence(int64_t index) const {
  Sequence sequence;
  sequence.index = index;
  int64_t q_len = problem_.q_len;
  int64_t kv_len = problem_.kv_len;
  if (problem_.packed) {
    const auto* const q_offsets = static_cast<const int32_t*>(tensors_.cu_seqlens_q.data);
    const auto* const kv_offsets = static_cast<const int32_t*>(tensors_.cu_seqlens_kv.data);
    sequence.q_begin = q_offsets[index];
    sequence.kv_begin = kv_offsets[index];
    q_len = q_offsets[index + 1] - sequence.q_begin;
    kv_len = kv_offsets[index + 1] - sequence.kv_begin;
  }
  sequence.band = semantics::make_band(rule_, q_len, kv_len);
  return sequence;
}

Rows Addresses::rows_at(const Tensor& tensor, int64_t sequence, int64_t head, int64_t row) const {
  if (!tensor.given() || tensor.data == nullptr) return {};
  const size_t row_dim = problem_.packed ? 0 : 1;
  int64_t offset = row * tensor.stride[row_dim] + head * tensor.stride[row_dim + 1];
  if (!problem_.packed) offset += sequence * tensor.stride[0];
  return {static_cast<const char*>(tensor.data) + offset * size_of(tensor.dtype),
          tensor.stride[row_dim]};
}

float* Addresses::statistic(const Tensor& tensor, const Sequence& sequence, int64_t head,
                            int64_t row) const {
  if (!tensor.given() || tensor.data == nullptr) return nullptr;
  const int64_t offset = problem_.packed
                             ? head * tensor.stride[0] + sequence.q_begin
                             : sequence.index * tensor.stride[0] + head * tensor.stride[1];
  return static_cast<float*>(tensor.data) + offset + row;
}

float Addresses::slope(const Sequence& sequence, int64_t head) const {
  const Tensor& slopes = tensors_.alibi_slopes;
  if (!slopes.given()) return 0;
  const int64_t first = slopes.ndim == 2 ? sequence.index * slopes.stride[0] : 0;
  return static_cast<const float*>(slopes.data)[first + head];
}

float Addresses::sink(int64_t head) const {
  return tensors_.sink.given() ? static_cast<const float*>(tensors_.sink.data)[head] : 0;
}

namespace {

// Floats of an odd number of cache lines that hold a row.
int64_t odd_lines(int64_t dim) { return ((dim + 15) / 16 | 1) * 16; }

}  // namespace

Settings settings_of(const Problem& problem) {
  Settings settings;
  settings.element = problem.dtype == DType::f32    ? Element::f32
                     : problem.dtype == DType::bf16 ? Element::bf16
                                                    : Element::f16;
  settings.head_dim = static_cast<int>(problem.head_dim);
  settings.value_dim = static_cast<int>(problem.value_dim);
  settings.scale = problem.scale;
  settings.softcap = static_cast<float>(problem.options.softcap);
  settings.has_alibi = problem.has(Arg::alibi_slopes);
  settings.has_sink = problem.has(Arg::sink);
  settings.dropout = problem.dropout();
  settings.copy_keys = must_copy_rows(problem, Arg::k);
  settings.copy_values = must_copy_rows(problem, Arg::v);
  settings.key_row = odd_lines(problem.head_dim);
  settings.value_row = odd_lines(problem.value_dim);
  return settings;
}

bool must_copy_rows(const Problem& problem, Arg arg) {
  if (problem.dtype != DType::f32) return true;
  const int64_t bytes = problem.layout(arg).stride[problem.packed ? 0 : 1] * 4;
  // Rows this far apart fall on few sets of the caches: a block pushes itself out.
  return bytes >= 1024 && bytes % 512 == 0;
}

}  // namespace tilewise::cpu
