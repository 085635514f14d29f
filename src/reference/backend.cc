// Backend "reference": the float64 results, rounded once to the dtype of each output. Slow on
// purpose, chosen only by name; it allocates while it runs, unlike every other backend.
#include "backend.h"

#include "reference/element.h"
#include "reference/reference.h"

namespace tilewise {

namespace {

using reference::Position;
using reference::Values;

// Writes [positions, heads, dim] into [b, s, h, d] or [total, h, d].
void write_rows(const Problem& problem, const std::vector<Position>& positions,
                const Values& values, const Tensor& tensor) {
  if (!tensor.given()) return;
  const size_t heads_dim = problem.packed ? 1 : 2;
  const int64_t heads = tensor.size[heads_dim];
  const int64_t dim = tensor.size[heads_dim + 1];
  const double* next = values.value.data();
  for (const Position& position : positions) {
    const int64_t row =
        problem.packed ? position.packed_row * tensor.stride[0]
                       : position.sequence * tensor.stride[0] + position.index * tensor.stride[1];
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < dim; ++d) {
        reference::write_element(tensor.data, tensor.dtype, row + h * tensor.stride[heads_dim] + d,
                                 *next++);
      }
    }
  }
}

// Writes [positions, heads] into [b, h, s] or [h, total].
void write_lse(const Problem& problem, const std::vector<Position>& positions, const Values& values,
               const Tensor& tensor) {
  if (!tensor.given()) return;
  const double* next = values.value.data();
  for (const Position& position : positions) {
    for (int64_t h = 0; h < problem.q_heads; ++h) {
      const int64_t offset = problem.packed ? h * tensor.stride[0] + position.packed_row
                                            : position.sequence * tensor.stride[0] +
                                                  h * tensor.stride[1] + position.index;
      reference::write_element(tensor.data, tensor.dtype, offset, *next++);
    }
  }
}

class ReferencePlan final : public BackendPlan {
 public:
  explicit ReferencePlan(const Problem& problem) : problem_(problem) {}
  const Backend& backend() const override { return reference_backend(); }
  size_t workspace_bytes() const override { return 0; }
  std::string describe() const override { return "arithmetic: float64, no tiles\n"; }
  void run(const Tensors& tensors, void* /*workspace*/, void* /*stream*/) const override {
    if (problem_.direction == Direction::forward) {
      const reference::Result64 result = reference::forward(problem_, tensors);
      write_rows(problem_, result.rows, result.out, tensors.out);
      write_lse(problem_, result.rows, result.lse, tensors.lse);
      return;
    }
    const reference::Gradients64 result = reference::backward(problem_, tensors);
    write_rows(problem_, result.rows, result.d_q, tensors.d_q);
    write_rows(problem_, result.keys, result.d_k, tensors.d_k);
    write_rows(problem_, result.keys, result.d_v, tensors.d_v);
    for (size_t h = 0; tensors.d_sink.given() && h < result.d_sink.value.size(); ++h) {
      reference::write_element(tensors.d_sink.data, DType::f32, static_cast<int64_t>(h),
                               result.d_sink.value[h]);
    }
  }

 private:
  Problem problem_;
};

class ReferenceBackend final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  bool only_by_name() const override { return true; }
  std::vector<std::string> why_not(const Problem& problem) const override {
    if (problem.device.type != DeviceType::cpu) return {"the tensors are not in CPU memory"};
    return {};
  }
  std::unique_ptr<const BackendPlan> plan(const Problem& problem) const override {
    return std::make_unique<ReferencePlan>(problem);
  }
};

}  // namespace

const Backend& reference_backend() {
  static const ReferenceBackend backend;
  return backend;
}

}  // namespace tilewise
