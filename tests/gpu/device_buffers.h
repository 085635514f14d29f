// Poisoned test tensors: a tensor on host and device whose padding, gaps and surroundings are NaN,
// and plain device arrays. Both free their memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "driver.h"
#include "element.h"
#include "forward_case.h"
#include "launch.h"

namespace tilewise::gpu::testing {

inline constexpr size_t kGuard = 64;  // poisoned elements before and after every buffer

inline uint32_t to_bits(float x, Element element) {
  if (element == Element::kFp32) return std::bit_cast<uint32_t>(x);
  if (element == Element::kBf16) {
    uint32_t u = std::bit_cast<uint32_t>(x);
    if (std::isnan(x)) return 0x7fc0;
    u += 0x7fff + ((u >> 16) & 1);
    return u >> 16;
  }
  return f16_from_float(x);
}

inline float from_bits(uint32_t bits, Element element) {
  if (element == Element::kFp32) return std::bit_cast<float>(bits);
  if (element == Element::kBf16) return std::bit_cast<float>(bits << 16);
  return float_from_f16(static_cast<uint16_t>(bits));
}

inline uint32_t poison(Element element) {
  if (element == Element::kFp32) return 0x7fc00001;
  return element == Element::kBf16 ? 0x7fc1 : 0x7e01;
}

// A tensor [batch, rows, heads, dim] on host and device, NaN outside the owned elements.
struct Buffer {
  Strides strides;
  int64_t batch, rows, heads, dim;
  Element element;
  std::vector<uint32_t> bits;  // one element each, 16-bit ones in the lower half
  CUdeviceptr device = 0;
  size_t first = kGuard;  // element 0

  Buffer(int64_t b, int64_t s, int64_t h, int64_t d, Layout layout, Element e)
      : batch(b), rows(s), heads(h), dim(d), element(e) {
    int64_t width = (d + 7) / 8 * 8 + (layout == Layout::kStrided ? 8 : 0);
    if (layout == Layout::kOdd) width = d + 1 + d % 2;
    if (layout == Layout::kOdd) first += 1;
    const int64_t gap = layout == Layout::kStrided ? 3 : 0;
    if (layout == Layout::kBhsd) {
      strides = {width * s * h, width, width * s};
    } else {
      strides = {width * h * (s + gap), width * h, width};
    }
    if (layout == Layout::kBroadcast) strides = {0, width, 0};
    const int64_t elements = layout == Layout::kBroadcast ? width * s : width * h * (s + gap) * b;
    bits.assign(static_cast<size_t>(elements) + 2 * kGuard, poison(e));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (device != 0) driver().cuMemFree(device);
  }
  size_t index(int64_t b, int64_t s, int64_t h, int64_t d) const {
    return first + static_cast<size_t>(b * strides.batch + s * strides.row + h * strides.head + d);
  }
  float at(int64_t b, int64_t s, int64_t h, int64_t d) const {
    return from_bits(bits[index(b, s, h, d)], element);
  }
  void set(int64_t b, int64_t s, int64_t h, int64_t d, float x) {
    bits[index(b, s, h, d)] = to_bits(x, element);
  }
  size_t element_bytes() const { return element == Element::kFp32 ? 4 : 2; }
  void upload() {
    const size_t bytes = bits.size() * element_bytes();
    if (device == 0) check_cuda(driver().cuMemAlloc(&device, bytes), "cuMemAlloc");
    const std::vector<uint16_t> halves(bits.begin(), bits.end());
    const void* from = bits.data();
    if (element != Element::kFp32) from = halves.data();
    check_cuda(driver().cuMemcpyHtoD(device, from, bytes), "cuMemcpyHtoD");
  }
  void download() {
    std::vector<uint16_t> halves(bits.size());
    void* to = bits.data();
    if (element != Element::kFp32) to = halves.data();
    check_cuda(driver().cuMemcpyDtoH(to, device, bits.size() * element_bytes()), "cuMemcpyDtoH");
    if (element != Element::kFp32) bits.assign(halves.begin(), halves.end());
  }
  void* data() const { return reinterpret_cast<void*>(device + element_bytes() * first); }
};

template <class T>
struct DeviceArray {
  CUdeviceptr device = 0;
  size_t count;
  explicit DeviceArray(const std::vector<T>& host) : count(host.size()) {
    const size_t bytes = std::max<size_t>(16, count * sizeof(T));
    check_cuda(driver().cuMemAlloc(&device, bytes), "cuMemAlloc");
    if (count > 0) {
      check_cuda(driver().cuMemcpyHtoD(device, host.data(), count * sizeof(T)), "cuMemcpyHtoD");
    }
  }
  ~DeviceArray() { driver().cuMemFree(device); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  std::vector<T> download() const {
    std::vector<T> host(count);
    check_cuda(driver().cuMemcpyDtoH(host.data(), device, count * sizeof(T)), "cuMemcpyDtoH");
    return host;
  }
  T* data() const { return reinterpret_cast<T*>(device); }
};

}  // namespace tilewise::gpu::testing
