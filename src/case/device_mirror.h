// DeviceMirror: host memory and its copy on a GPU. Tests and the command line make and judge
// tensors on the host; a backend that takes device memory runs on the copy.
//
//   host    [ span 0 ] ... [ span 1 ] ...
//   device  [ span 0 | tail | span 1 | tail | ... ]     one buffer; tails are NaN and must stay so
//
// A span keeps its alignment up to 256 bytes, gaps and canaries come along, so what violations()
// says of the host memory after download() holds for the device.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "device.h"
#include "problem.h"

namespace tilewise {

// The same views, said to lie in device memory: enough to plan a call.
Tensors as_device_tensors(const Tensors& tensors, int device = 0);

// The memory of each tensor that has elements, from its first to its last.
std::vector<std::span<std::byte>> spans_of(const Tensors& tensors);

class DeviceMirror {
 public:
  explicit DeviceMirror(std::vector<std::span<std::byte>> spans, int device = 0);

  void upload();
  // Waits for the device first. Returns a text when memory behind a span was written, else "".
  std::string download();
  // Where the copy of a host byte is; null for null and for bytes outside the spans.
  void* address_of(const void* host) const;
  // The views on the copies.
  Tensors on_device(const Tensors& tensors) const;

 private:
  std::vector<std::span<std::byte>> spans_;
  std::vector<size_t> offsets_;     // of each span in the buffer
  std::vector<std::byte> staging_;  // the buffer's image: one copy each way
  DeviceBuffer buffer_;
};

}  // namespace tilewise
