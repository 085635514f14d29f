// One staging image and one device buffer for all spans.
#include "case/device_mirror.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tilewise {

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kTailBytes = 4096;
constexpr std::byte kTail{0xFF};  // NaN in every type, -1 as an index

size_t phase_of(const std::byte* data) { return reinterpret_cast<uintptr_t>(data) % kAlignment; }

}  // namespace

Tensors as_device_tensors(const Tensors& tensors, int device) {
  Tensors result = tensors;
  for (int arg = 0; arg < kArgCount; ++arg) {
    Tensor& tensor = tensor_of(result, static_cast<Arg>(arg));
    if (tensor.given()) tensor.device = {DeviceType::cuda, device};
  }
  return result;
}

std::vector<std::span<std::byte>> spans_of(const Tensors& tensors) {
  std::vector<std::span<std::byte>> spans;
  const Tensors views = without_idle_strides(tensors);
  for (int arg = 0; arg < kArgCount; ++arg) {
    const Tensor& tensor = tensor_of(views, static_cast<Arg>(arg));
    if (tensor.elements() == 0) continue;
    int64_t last = 0;
    for (size_t d = 0; d < static_cast<size_t>(tensor.ndim); ++d) {
      last += (tensor.size[d] - 1) * tensor.stride[d];
    }
    spans.emplace_back(static_cast<std::byte*>(tensor.data),
                       static_cast<size_t>((last + 1) * size_of(tensor.dtype)));
  }
  return spans;
}

DeviceMirror::DeviceMirror(std::vector<std::span<std::byte>> spans, int device)
    : spans_(std::move(spans)) {
  size_t bytes = 0;
  for (const std::span<std::byte>& span : spans_) {
    const size_t offset =
        (bytes + kAlignment - 1) / kAlignment * kAlignment + phase_of(span.data());
    offsets_.push_back(offset);
    bytes = offset + span.size() + kTailBytes;
  }
  staging_.assign(bytes, kTail);
  buffer_ = DeviceBuffer(bytes, device);
}

void DeviceMirror::upload() {
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (!spans_[i].empty()) {
      std::memcpy(staging_.data() + offsets_[i], spans_[i].data(), spans_[i].size());
    }
  }
  buffer_.upload(staging_.data(), staging_.size());
}

std::string DeviceMirror::download() {
  synchronize(buffer_.device());
  buffer_.download(staging_.data(), staging_.size());
  std::string overrun;
  for (size_t i = 0; i < spans_.size(); ++i) {
    const std::byte* const copy = staging_.data() + offsets_[i];
    if (!spans_[i].empty()) std::memcpy(spans_[i].data(), copy, spans_[i].size());
    const std::byte* const tail = copy + spans_[i].size();
    const auto* const changed =
        std::find_if(tail, tail + kTailBytes, [](std::byte byte) { return byte != kTail; });
    if (changed == tail + kTailBytes) continue;
    overrun = "device memory was written " + std::to_string(changed - tail) +
              " bytes behind an allocation";
    std::fill_n(staging_.data() + offsets_[i] + spans_[i].size(), kTailBytes, kTail);
  }
  return overrun;
}

void* DeviceMirror::address_of(const void* host) const {
  const auto* const byte = static_cast<const std::byte*>(host);
  void* behind = nullptr;  // an empty tensor may lie at the end of its span
  for (size_t i = 0; i < spans_.size(); ++i) {
    const std::byte* const first = spans_[i].data();
    const std::byte* const end = first + spans_[i].size();
    if (byte == nullptr || byte < first || byte > end) continue;
    std::byte* const copy = buffer_.data() + offsets_[i] + (byte - first);
    if (byte < end) return copy;
    behind = copy;
  }
  return behind;
}

Tensors DeviceMirror::on_device(const Tensors& tensors) const {
  Tensors result = as_device_tensors(tensors, buffer_.device());
  for (int arg = 0; arg < kArgCount; ++arg) {
    Tensor& tensor = tensor_of(result, static_cast<Arg>(arg));
    tensor.data = address_of(tensor.data);
  }
  return result;
}

}  // namespace tilewise
