// A copy of a tensor with the same numbers in another order, at another alignment or at enormous
// strides: to move one argument of a call while the others stay where they are.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "tilewise/tilewise.hpp"

namespace tilewise::test {

using Visit = std::function<void(int64_t, int64_t)>;

// Calls visit(offset in a, offset in b) for every element of two views of the same sizes.
inline void for_each_pair(const Tensor& a, const Tensor& b, const Visit& visit) {
  std::array<int64_t, kMaxDims> at{};
  const int64_t count = a.elements();
  for (int64_t n = 0; n < count; ++n) {
    int64_t from = 0, to = 0;
    for (size_t d = 0; d < static_cast<size_t>(a.ndim); ++d) {
      from += at[d] == 0 ? 0 : at[d] * a.stride[d];
      to += at[d] == 0 ? 0 : at[d] * b.stride[d];
    }
    visit(from, to);
    for (auto d = static_cast<size_t>(a.ndim); d-- > 0;) {
      if (++at[d] < a.size[d]) break;
      at[d] = 0;
    }
  }
}

class Relaid {
 public:
  // strides: of `tensor` in its new memory, which reserves address space only: pages that no
  // element lies on cost nothing. offset: elements before the first one.
  Relaid(const Tensor& tensor, const std::array<int64_t, kMaxDims>& strides, int64_t offset = 0)
      : source_(tensor), view_(tensor) {
    view_.stride = strides;
    int64_t last = offset;
    for (size_t d = 0; d < static_cast<size_t>(tensor.ndim); ++d) {
      if (tensor.size[d] > 1) last += (tensor.size[d] - 1) * strides[d];
    }
    bytes_ = static_cast<size_t>((last + 1) * size_of(tensor.dtype));
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) throw Error(Status::out_of_memory, "no address space for a test");
    view_.data = static_cast<char*>(memory_) + offset * size_of(tensor.dtype);
    copy(source_, view_);
  }
  ~Relaid() { munmap(memory_, bytes_); }
  Relaid(const Relaid&) = delete;
  Relaid& operator=(const Relaid&) = delete;

  const Tensor& view() const { return view_; }
  // Brings results back to where the tensor was.
  void copy_back() const { copy(view_, source_); }

 private:
  static void copy(const Tensor& from, const Tensor& to) {
    const auto bytes = static_cast<size_t>(size_of(from.dtype));
    for_each_pair(from, to, [&](int64_t a, int64_t b) {
      std::memcpy(static_cast<char*>(to.data) + b * static_cast<int64_t>(bytes),
                  static_cast<const char*>(from.data) + a * static_cast<int64_t>(bytes), bytes);
    });
  }
  Tensor source_;
  Tensor view_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Strides that nest the dimensions in `order` (outermost first) with `gap` elements after each.
inline std::array<int64_t, kMaxDims> nested_strides(const Tensor& tensor,
                                                    const std::vector<size_t>& order, int64_t gap) {
  std::array<int64_t, kMaxDims> strides{};
  int64_t step = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[*d] = step;
    step = step * std::max<int64_t>(tensor.size[*d], 1) + gap;
  }
  return strides;
}

}  // namespace tilewise::test
