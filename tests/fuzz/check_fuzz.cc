// A call that is almost right: sensible tensors of which a few sizes, strides, dtypes, devices and
// options are replaced by anything. check() must refuse it in one line that names the operation, or
// what it accepts must hold the rules that backends rely on. No data is read.
#include <fuzzer/FuzzedDataProvider.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "problem.h"

namespace {

using tilewise::Arg;
using tilewise::Direction;
using tilewise::DType;
using tilewise::Options;
using tilewise::Problem;
using tilewise::Tensor;
using tilewise::Tensors;

void expect(bool holds) {
  if (!holds) std::abort();
}

// Mostly small, sometimes an edge of int64, sometimes anything.
int64_t any_number(FuzzedDataProvider& bytes) {
  constexpr int64_t kEdges[] = {-1,
                                0,
                                1,
                                256,
                                257,
                                int64_t{1} << 31,
                                int64_t{1} << 62,
                                std::numeric_limits<int64_t>::max(),
                                std::numeric_limits<int64_t>::min()};
  switch (bytes.ConsumeIntegralInRange<int>(0, 2)) {
    case 0:
      return bytes.ConsumeIntegralInRange<int64_t>(-2, 70);
    case 1:
      return bytes.PickValueInArray(kEdges);
    default:
      return bytes.ConsumeIntegral<int64_t>();
  }
}

double any_real(FuzzedDataProvider& bytes) {
  const double kEdges[] = {0,
                           0.125,
                           1,
                           -1,
                           std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::denorm_min()};
  return bytes.ConsumeBool() ? bytes.PickValueInArray(kEdges)
                             : bytes.ConsumeFloatingPoint<double>();
}

Tensors sensible_tensors(FuzzedDataProvider& bytes) {
  const int64_t b = bytes.ConsumeIntegralInRange<int64_t>(0, 3);
  const int64_t hkv = bytes.ConsumeIntegralInRange<int64_t>(0, 3);
  const int64_t hq = hkv * bytes.ConsumeIntegralInRange<int64_t>(1, 3);
  const int64_t s = bytes.ConsumeIntegralInRange<int64_t>(0, 9);
  const int64_t t = bytes.ConsumeIntegralInRange<int64_t>(0, 9);
  const int64_t d = bytes.ConsumeIntegralInRange<int64_t>(1, 256);
  const int64_t dv = bytes.ConsumeIntegralInRange<int64_t>(1, 256);
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
  const DType type = bytes.PickValueInArray(kTypes);
  Tensors x;
  if (bytes.ConsumeBool()) {
    x.q = Tensor::bshd(nullptr, type, b, s, hq, d);
    x.k = Tensor::bshd(nullptr, type, b, t, hkv, d);
    x.v = Tensor::bhsd(nullptr, type, b, t, hkv, dv);
    x.out = Tensor::bshd(nullptr, type, b, s, hq, dv);
    x.lse = Tensor::contiguous(nullptr, DType::f32, {b, hq, s});
  } else {
    x.q = Tensor::contiguous(nullptr, type, {b * s, hq, d});
    x.k = Tensor::contiguous(nullptr, type, {b * t, hkv, d});
    x.v = Tensor::contiguous(nullptr, type, {b * t, hkv, dv});
    x.out = Tensor::contiguous(nullptr, type, {b * s, hq, dv});
    x.lse = Tensor::contiguous(nullptr, DType::f32, {hq, b * s});
    x.cu_seqlens_q = Tensor::contiguous(nullptr, DType::i32, {b + 1});
    x.cu_seqlens_kv = Tensor::contiguous(nullptr, DType::i32, {b + 1});
  }
  if (bytes.ConsumeBool()) x.sink = Tensor::contiguous(nullptr, DType::f32, {hq});
  if (bytes.ConsumeBool()) x.alibi_slopes = Tensor::contiguous(nullptr, DType::f32, {b, hq});
  x.d_out = x.out;
  if (bytes.ConsumeBool()) x.d_lse = x.lse;
  if (bytes.ConsumeBool()) x.d_q = x.q;
  if (bytes.ConsumeBool()) x.d_k = x.k;
  if (bytes.ConsumeBool()) x.d_v = x.v;
  if (bytes.ConsumeBool()) x.d_sink = x.sink;
  return x;
}

void spoil(FuzzedDataProvider& bytes, Tensors& tensors) {
  const int arg = bytes.ConsumeIntegralInRange<int>(0, tilewise::kArgCount - 1);
  Tensor& tensor = tilewise::tensor_of(tensors, static_cast<Arg>(arg));
  const auto dim = bytes.ConsumeIntegralInRange<size_t>(0, tilewise::kMaxDims - 1);
  switch (bytes.ConsumeIntegralInRange<int>(0, 4)) {
    case 0:
      tensor.size[dim] = any_number(bytes);
      break;
    case 1:
      tensor.stride[dim] = any_number(bytes);
      break;
    case 2:
      tensor.dtype = static_cast<DType>(bytes.ConsumeIntegralInRange<int>(-1, 6));
      break;
    case 3:
      tensor.ndim = bytes.ConsumeIntegralInRange<int32_t>(-1, 5);
      break;
    default:
      tensor.device.type = static_cast<tilewise::DeviceType>(bytes.ConsumeIntegralInRange(0, 3));
      tensor.device.id = bytes.ConsumeIntegralInRange<int32_t>(-1, 2);
  }
}

Options any_options(FuzzedDataProvider& bytes) {
  Options options;
  if (bytes.ConsumeBool()) options.mask.left = any_number(bytes);
  if (bytes.ConsumeBool()) options.mask.right = any_number(bytes);
  options.mask.alignment =
      static_cast<tilewise::Alignment>(bytes.ConsumeIntegralInRange<int32_t>(-1, 3));
  if (bytes.ConsumeBool()) options.mask.offset = any_number(bytes);
  if (bytes.ConsumeBool()) options.scale = any_real(bytes);
  if (bytes.ConsumeBool()) options.softcap = any_real(bytes);
  if (bytes.ConsumeBool()) options.dropout = any_real(bytes);
  if (bytes.ConsumeBool()) options.max_q_len = any_number(bytes);
  if (bytes.ConsumeBool()) options.max_kv_len = any_number(bytes);
  return options;
}

// What backends take for granted.
void expect_sound(const Problem& problem) {
  expect(problem.batch >= 0 && problem.q_heads >= 0 && problem.q_len >= 0 && problem.kv_len >= 0);
  expect(problem.kv_heads == 0 ? problem.q_heads == 0 : problem.q_heads % problem.kv_heads == 0);
  expect(problem.head_dim >= 1 && problem.head_dim <= 256);
  expect(problem.value_dim >= 1 && problem.value_dim <= 256);
  expect(std::isfinite(problem.scale) && problem.scale > 0);
  expect(problem.options.softcap >= 0 && problem.options.dropout >= 0);
  expect(problem.options.dropout < 1);
  for (int i = 0; i < tilewise::kArgCount; ++i) {
    const Tensor& tensor = problem.layout(static_cast<Arg>(i));
    if (!tensor.given()) continue;
    expect(tensor.ndim >= 1 && tensor.ndim <= tilewise::kMaxDims);
    expect(tensor.elements() >= 0);
  }
  (void)problem.mask_rule();
  (void)problem.dropout();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider bytes(data, size);
  const Direction direction = bytes.ConsumeBool() ? Direction::forward : Direction::backward;
  Tensors tensors = sensible_tensors(bytes);
  for (int n = bytes.ConsumeIntegralInRange<int>(0, 3); n > 0; --n) spoil(bytes, tensors);
  const Options options = any_options(bytes);
  try {
    expect_sound(tilewise::make_problem(direction, tensors, options));
    (void)tilewise::without_idle_strides(tensors);
  } catch (const tilewise::Error& error) {
    const std::string_view text = error.what();
    expect(error.status() == tilewise::Status::invalid_argument);
    expect(text.substr(0, 10) == "tilewise::" && text.find('\n') == std::string_view::npos);
  }
  return 0;
}
