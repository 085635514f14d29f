// Tensor: how the named memory orders become sizes and strides, and names and sizes of dtypes.
#include "tilewise/tilewise.hpp"

namespace tilewise {

int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::none:
      return 0;
    case DType::f32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::f16:
      return 2;
    case DType::i32:
      return 4;
  }
  return 0;
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::none:
      return "none";
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::i32:
      return "int32";
  }
  return "unknown";
}

int64_t Tensor::elements() const {
  int64_t count = ndim > 0 ? 1 : 0;
  for (int32_t dim = 0; dim < ndim; ++dim) count *= size[static_cast<size_t>(dim)];
  return count;
}

Tensor Tensor::contiguous(const void* data, DType dtype, std::initializer_list<int64_t> sizes) {
  if (sizes.size() > kMaxDims) {
    throw Error(Status::invalid_argument, "tilewise::Tensor: sizes has " +
                                              std::to_string(sizes.size()) +
                                              " dimensions, expected at most 4");
  }
  Tensor tensor;
  tensor.data = const_cast<void*>(data);
  tensor.dtype = dtype;
  tensor.ndim = static_cast<int32_t>(sizes.size());
  size_t dim = 0;
  for (const int64_t size : sizes) tensor.size[dim++] = size;
  int64_t stride = 1;
  while (dim-- > 0) {
    tensor.stride[dim] = stride;
    // Wraps instead of trapping on absurd sizes; check() refuses those before memory is touched.
    const uint64_t step = tensor.size[dim] > 0 ? static_cast<uint64_t>(tensor.size[dim]) : 1;
    stride = static_cast<int64_t>(static_cast<uint64_t>(stride) * step);
  }
  return tensor;
}

Tensor Tensor::bshd(const void* data, DType dtype, int64_t batch, int64_t len, int64_t heads,
                    int64_t dim) {
  return contiguous(data, dtype, {batch, len, heads, dim});
}

Tensor Tensor::bhsd(const void* data, DType dtype, int64_t batch, int64_t len, int64_t heads,
                    int64_t dim) {
  Tensor tensor = contiguous(data, dtype, {batch, heads, len, dim});
  std::swap(tensor.size[1], tensor.size[2]);
  std::swap(tensor.stride[1], tensor.stride[2]);
  return tensor;
}

}  // namespace tilewise
