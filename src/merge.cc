// merge(): partial results over disjoint keys become the result over all of them.
//
//   max = max_p lse_p;  w_p = exp(lse_p - max)
//   out = sum w_p out_p / sum w_p;  lse = max + log sum w_p
//
// Empty partials (lse -inf) are skipped, so merging with one returns the other bitwise; if all are
// empty the row is (0, -inf). Each element is read from every part before it is written, so out may
// be the memory of a part. Stable for any gap of the lse (contracts: merge).
#include <cmath>
#include <limits>

#include "element.h"
#include "error.h"

namespace tilewise {

namespace {

constexpr std::string_view kOperation = "tilewise::merge";
constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

// One (batch, row, head) of a tensor whose last dimension is dim; lse has no such dimension.
struct RowSteps {
  int64_t batch;
  int64_t row;
  int64_t head;
};

// out is [b, s, h, dv] or [t, h, dv]; lse is [b, h, s] or [h, t].
RowSteps steps_of_out(const Tensor& out) {
  return out.ndim == 4 ? RowSteps{out.stride[0], out.stride[1], out.stride[2]}
                       : RowSteps{0, out.stride[0], out.stride[1]};
}

RowSteps steps_of_lse(const Tensor& lse) {
  return lse.ndim == 3 ? RowSteps{lse.stride[0], lse.stride[2], lse.stride[1]}
                       : RowSteps{0, lse.stride[1], lse.stride[0]};
}

struct Sizes {
  int64_t batch;
  int64_t rows;
  int64_t heads;
  int64_t dim;
};

Sizes sizes_of(const Tensor& out) {
  return out.ndim == 4 ? Sizes{out.size[0], out.size[1], out.size[2], out.size[3]}
                       : Sizes{1, out.size[0], out.size[1], out.size[2]};
}

void check_one(const Tensor& tensor, const std::string& name, DType dtype, bool any_float) {
  const bool right_dtype = any_float ? (tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 ||
                                        tensor.dtype == DType::f16)
                                     : tensor.dtype == dtype;
  if (!tensor.given()) throw_invalid(kOperation, name, "not given", "a tensor", "");
  if (!right_dtype) {
    throw_invalid(kOperation, name + ".dtype", name_of(tensor.dtype),
                  any_float ? "fp32, bf16 or fp16" : "fp32", "partials are kept in fp32");
  }
  if (tensor.device.type != DeviceType::cpu) {
    throw_invalid(kOperation, name + ".device", "not cpu", "cpu", "merge runs on the CPU");
  }
  if (tensor.data == nullptr && tensor.elements() > 0) {
    throw_invalid(kOperation, name + ".data", "null", "a pointer", "");
  }
}

void check_sizes(const Tensor& tensor, const std::string& name, std::span<const int64_t> expected) {
  if (tensor.ndim != static_cast<int32_t>(expected.size())) {
    throw_invalid(kOperation, name + ".ndim", std::to_string(tensor.ndim),
                  std::to_string(expected.size()), "out.ndim");
  }
  for (size_t d = 0; d < expected.size(); ++d) {
    if (tensor.size[d] != expected[d]) {
      throw_invalid(kOperation, name + ".size[" + std::to_string(d) + "]",
                    std::to_string(tensor.size[d]), std::to_string(expected[d]), "out.size");
    }
  }
}

void check_merge(std::span<const Partial> parts, const Tensor& out, const Tensor& lse) {
  check_one(out, "out", DType::none, true);
  if (out.ndim != 3 && out.ndim != 4) {
    throw_invalid(kOperation, "out.ndim", std::to_string(out.ndim), "4, or 3 for a packed batch",
                  "");
  }
  const Sizes sizes = sizes_of(out);
  const std::array<int64_t, 3> dense{sizes.batch, sizes.heads, sizes.rows};
  const std::array<int64_t, 2> packed{sizes.heads, sizes.rows};
  const std::span<const int64_t> lse_sizes =
      out.ndim == 4 ? std::span<const int64_t>(dense) : std::span<const int64_t>(packed);
  const std::span<const int64_t> out_sizes(out.size.data(), static_cast<size_t>(out.ndim));
  if (out.elements() > 0 && sizes.dim > 1 && out.stride[static_cast<size_t>(out.ndim) - 1] != 1) {
    throw_invalid(kOperation, "out.stride", "not 1 in the innermost dimension", "1", "");
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    const std::string name = "parts[" + std::to_string(p) + "]";
    check_one(parts[p].out, name + ".out", DType::f32, false);
    check_one(parts[p].lse, name + ".lse", DType::f32, false);
    check_sizes(parts[p].out, name + ".out", out_sizes);
    check_sizes(parts[p].lse, name + ".lse", lse_sizes);
  }
  if (lse.given()) {
    check_one(lse, "lse", DType::f32, false);
    check_sizes(lse, "lse", lse_sizes);
  }
}

struct Row {
  int64_t batch;
  int64_t row;
  int64_t head;
  int64_t in(const RowSteps& steps) const {
    return batch * steps.batch + row * steps.row + head * steps.head;
  }
};

double lse_of(const Partial& part, const Row& row) {
  return static_cast<const float*>(part.lse.data)[row.in(steps_of_lse(part.lse))];
}

// weights: scratch, one for each part.
void merge_row(std::span<const Partial> parts, const Tensor& out, const Tensor& lse, const Row& row,
               std::span<double> weights) {
  double max = kNegativeInfinity;
  for (const Partial& part : parts) {
    const double value = lse_of(part, row);
    if (!(value <= max)) max = value;  // NaN wins and stays
    if (std::isnan(max)) break;
  }
  double weight_sum = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    const double value = lse_of(parts[p], row);
    weights[p] = value == kNegativeInfinity ? 0 : std::exp(value - max);
    weight_sum += weights[p];
  }
  const int64_t dim = sizes_of(out).dim;
  const int64_t out_row = row.in(steps_of_out(out));
  for (int64_t d = 0; d < dim; ++d) {
    double sum = -0.0;  // the neutral element of addition: -0.0 + x is x for every x
    for (size_t p = 0; p < parts.size(); ++p) {
      if (weights[p] == 0) continue;  // whatever an empty part holds is not looked at
      const int64_t part_row = row.in(steps_of_out(parts[p].out));
      sum += weights[p] * static_cast<const float*>(parts[p].out.data)[part_row + d];
    }
    store_element(out.data, out.dtype, out_row + d,
                  weight_sum == 0 ? 0.0f : static_cast<float>(sum / weight_sum));
  }
  if (!lse.given()) return;
  const double total = weight_sum == 0 ? max : max + std::log(weight_sum);
  static_cast<float*>(lse.data)[row.in(steps_of_lse(lse))] = static_cast<float>(total);
}

}  // namespace

void merge(std::span<const Partial> parts, const Tensor& out, const Tensor& lse) {
  check_merge(parts, out, lse);
  const Sizes sizes = sizes_of(out);
  std::vector<double> weights(parts.size());
  for (int64_t b = 0; b < sizes.batch; ++b) {
    for (int64_t r = 0; r < sizes.rows; ++r) {
      for (int64_t h = 0; h < sizes.heads; ++h) {
        merge_row(parts, out, lse, {b, r, h}, weights);
      };
    }
  }
}

}  // namespace tilewise
