// src/device.h by the CUDA driver: plain and stream-ordered memory, copies, events.
#include "device.h"

#include <utility>

#include "driver.h"

namespace tilewise {

namespace {

using gpu::check_cuda;
using gpu::CUdeviceptr;
using gpu::CUevent;
using gpu::CUstream;
using gpu::driver;
using gpu::ScopedDevice;

CUdeviceptr pointer_of(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

// A copy from pageable memory returns when the driver has read it, not when it has arrived, and
// other streams do not wait for this one.
void wait_for_default_stream() {
  check_cuda(driver().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}

// Owns a CUevent of the current context.
class Event {
 public:
  Event() { check_cuda(driver().cuEventCreate(&event_, 0), "cuEventCreate"); }
  ~Event() { driver().cuEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() const { check_cuda(driver().cuEventRecord(event_, nullptr), "cuEventRecord"); }
  double seconds_since(const Event& start) const {
    check_cuda(driver().cuEventSynchronize(event_), "cuEventSynchronize");
    float milliseconds = 0;
    check_cuda(driver().cuEventElapsedTime(&milliseconds, start.event_, event_),
               "cuEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  CUevent event_ = nullptr;
};

}  // namespace

int device_count() {
  std::string why;
  const gpu::Driver* found = gpu::find_driver(&why);
  int count = 0;
  if (found == nullptr || found->cuDeviceGetCount(&count) != gpu::kCudaSuccess) return 0;
  return count;
}

std::string device_name(int device) {
  char name[128] = {};
  check_cuda(driver().cuDeviceGetName(name, sizeof name, device), "cuDeviceGetName");
  return name;
}

DeviceBuffer::DeviceBuffer(size_t bytes, int device) : bytes_(bytes), device_(device) {
  if (bytes == 0) return;
  const ScopedDevice scope(device);
  CUdeviceptr pointer = 0;
  const gpu::CUresult result = driver().cuMemAlloc(&pointer, bytes);
  if (result == gpu::kCudaOutOfMemory) {
    throw Error(Status::out_of_memory, "device " + std::to_string(device) + ": no memory for " +
                                           std::to_string(bytes) + " bytes");
  }
  check_cuda(result, "cuMemAlloc");
  data_ = reinterpret_cast<std::byte*>(pointer);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  try {
    const ScopedDevice scope(device_);
    driver().cuMemFree(pointer_of(data_));
  } catch (const Error&) {  // a lost context has freed its memory
  }
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}

void DeviceBuffer::upload(const void* from, size_t bytes, size_t offset) const {
  if (bytes == 0) return;
  const ScopedDevice scope(device_);
  check_cuda(driver().cuMemcpyHtoD(pointer_of(data_ + offset), from, bytes), "cuMemcpyHtoD");
  wait_for_default_stream();
}

void DeviceBuffer::download(void* to, size_t bytes, size_t offset) const {
  if (bytes == 0) return;
  const ScopedDevice scope(device_);
  check_cuda(driver().cuMemcpyDtoH(to, pointer_of(data_ + offset), bytes), "cuMemcpyDtoH");
}

void DeviceBuffer::fill(uint32_t word) const {
  if (bytes_ < 4) return;
  const ScopedDevice scope(device_);
  check_cuda(driver().cuMemsetD32(pointer_of(data_), word, bytes_ / 4), "cuMemsetD32");
  wait_for_default_stream();
}

void synchronize(int device) {
  const ScopedDevice scope(device);
  check_cuda(driver().cuCtxSynchronize(), "cuCtxSynchronize");
}

void* allocate_in_stream(size_t bytes, int device, void* stream) {
  if (bytes == 0) return nullptr;
  const ScopedDevice scope(device);
  CUdeviceptr pointer = 0;
  check_cuda(driver().cuMemAllocAsync(&pointer, bytes, static_cast<CUstream>(stream)),
             "cuMemAllocAsync");
  return reinterpret_cast<void*>(pointer);
}

void free_in_stream(void* data, int device, void* stream) noexcept {
  if (data == nullptr) return;
  try {
    const ScopedDevice scope(device);
    driver().cuMemFreeAsync(pointer_of(data), static_cast<CUstream>(stream));
  } catch (const Error&) {  // a lost context has freed its memory
  }
}

double seconds_on_device(int device, int calls, const std::function<void()>& enqueue) {
  const ScopedDevice scope(device);
  const Event start;
  const Event end;
  start.record();
  for (int i = 0; i < calls; ++i) enqueue();
  end.record();
  return end.seconds_since(start) / calls;
}

}  // namespace tilewise
