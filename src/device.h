// Memory and time of a GPU, for the parts of the library that are no backend: the workspace of
// forward(), tests that mirror host tensors, benches. Implemented by the backend that knows the
// driver, in src/gpu/device.cc; on a machine without a driver device_count() is 0 and everything
// else throws Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tilewise/tilewise.hpp"

namespace tilewise {

// GPUs that the driver shows; 0 without a driver.
int device_count();

// "NVIDIA H200".
std::string device_name(int device);

// Owned device memory, 256-byte aligned.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(size_t bytes, int device);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int device() const { return device_; }
  // Between host memory and `bytes` bytes from `offset` on; they return when it is done.
  void upload(const void* from, size_t bytes, size_t offset = 0) const;
  void download(void* to, size_t bytes, size_t offset = 0) const;
  // Every 32-bit word becomes `word`, likewise; bytes past the last whole word stay as they are.
  void fill(uint32_t word) const;

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int device_ = 0;
};

// Waits for everything enqueued on the device; throws Error when any of it failed.
void synchronize(int device);

// Memory that lives between two points of a stream: no synchronisation.
void* allocate_in_stream(size_t bytes, int device, void* stream);
void free_in_stream(void* data, int device, void* stream) noexcept;

// Seconds of one call on the device, by events around `calls` of them in its default stream.
double seconds_on_device(int device, int calls, const std::function<void()>& enqueue);

}  // namespace tilewise
