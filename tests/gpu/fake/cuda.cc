// A stand-in for libcuda.so.1: one Hopper whose memory is the host's and whose kernels do nothing.
// Tests find it through LD_LIBRARY_PATH and the same dlopen as the real one, so that every error
// path of the GPU backend runs on machines without a GPU. FAKE_CUDA says what goes wrong:
//
//   no_device   cuInit fails          no_memory     allocations fail
//   ampere      capability 8.0        load_fails    the driver refuses the cubin
//   launch_fails  cuLaunchKernel fails  kernel_fails  the kernel fails, which synchronising shows
//
// Built with FAKE_OLD_DRIVER it lacks an entry point, as drivers before 525 do.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#define FAKE extern "C" __attribute__((visibility("default"))) int

namespace {

using Pointer = unsigned long long;

constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kNoBinaryForGpu = 209;
constexpr int kInvalidValue = 1;
constexpr int kLaunchOutOfResources = 701;
constexpr int kIllegalAddress = 700;

bool goes_wrong(std::string_view what) {
  const char* chosen = std::getenv("FAKE_CUDA");
  return chosen != nullptr && what == chosen;
}

thread_local int contexts = 0;  // depth of this thread's stack
char anything;                  // what opaque handles point to

int allocate(Pointer* pointer, size_t bytes) {
  if (goes_wrong("no_memory")) return kOutOfMemory;
  *pointer = reinterpret_cast<Pointer>(std::aligned_alloc(512, (bytes + 511) / 512 * 512));
  return *pointer == 0 ? kOutOfMemory : 0;
}

int handle(void** out) {
  *out = &anything;
  return 0;
}

}  // namespace

FAKE cuInit(unsigned) { return goes_wrong("no_device") ? kNoDevice : 0; }
FAKE cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
FAKE cuGetErrorName(int error, const char** name) {
  *name = error == kNoDevice         ? "CUDA_ERROR_NO_DEVICE"
          : error == kOutOfMemory    ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == kNoBinaryForGpu ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
                                     : "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
  return 0;
}
FAKE cuGetErrorString(int error, const char** text) {
  *text = error == kNoDevice ? "no CUDA-capable device is detected" : "the fake was told to fail";
  return 0;
}
FAKE cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
FAKE cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
FAKE cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Fake Hopper", static_cast<size_t>(length));
  return 0;
}
FAKE cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kMultiprocessors = 16, kL2Bytes = 38, kMajor = 75, kSharedBytes = 97;
  *value = attribute == kMultiprocessors ? 132 : attribute == kL2Bytes ? 50 << 20 : 0;
  if (attribute == kSharedBytes) *value = 232448;
  if (attribute == kMajor) *value = goes_wrong("ampere") ? 8 : 9;
  return 0;
}
FAKE cuDevicePrimaryCtxRetain(void** context, int) { return handle(context); }
FAKE cuDevicePrimaryCtxRelease_v2(int) { return 0; }
FAKE cuCtxGetCurrent(void** context) {
  *context = contexts > 0 ? &anything : nullptr;
  return 0;
}
FAKE cuCtxGetDevice(int* device) {
  *device = 0;
  return 0;
}
FAKE cuCtxPushCurrent_v2(void*) {
  ++contexts;
  return 0;
}
FAKE cuCtxPopCurrent_v2(void** context) {
  --contexts;
  return handle(context);
}
FAKE cuCtxSynchronize() { return goes_wrong("kernel_fails") ? kIllegalAddress : 0; }
FAKE cuPointerGetAttribute(void*, int, Pointer) { return kInvalidValue; }
FAKE cuLibraryLoadData(void** library, const void*, int*, void**, unsigned, int*, void**,
                       unsigned) {
  return goes_wrong("load_fails") ? kNoBinaryForGpu : handle(library);
}
FAKE cuLibraryUnload(void*) { return 0; }
FAKE cuLibraryGetKernel(void** kernel, void*, const char*) { return handle(kernel); }
FAKE cuKernelSetAttribute(int, int, void*, int) { return 0; }
FAKE cuKernelGetAttribute(int* value, int, void*, int) {
  *value = 0;
  return 0;
}
FAKE cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                    void*, void**, void**) {
  return goes_wrong("launch_fails") ? kLaunchOutOfResources : 0;
}
#ifndef FAKE_OLD_DRIVER
FAKE cuTensorMapEncodeTiled(void*, int, uint32_t, void* address, const uint64_t*, const uint64_t*,
                            const uint32_t*, const uint32_t*, int, int, int, int) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0 ? 0 : kInvalidValue;
}
#endif
FAKE cuMemAlloc_v2(Pointer* pointer, size_t bytes) { return allocate(pointer, bytes); }
FAKE cuMemFree_v2(Pointer pointer) {
  std::free(reinterpret_cast<void*>(pointer));
  return 0;
}
FAKE cuMemAllocAsync(Pointer* pointer, size_t bytes, void*) { return allocate(pointer, bytes); }
FAKE cuMemFreeAsync(Pointer pointer, void*) { return cuMemFree_v2(pointer); }
FAKE cuMemcpyHtoD_v2(Pointer to, const void* from, size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
FAKE cuMemcpyDtoH_v2(void* to, Pointer from, size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
FAKE cuMemsetD32_v2(Pointer to, unsigned value, size_t count) {
  auto* const words = reinterpret_cast<unsigned*>(to);
  for (size_t i = 0; i < count; ++i) words[i] = value;
  return 0;
}
FAKE cuStreamCreate(void** stream, unsigned) { return handle(stream); }
FAKE cuStreamDestroy_v2(void*) { return 0; }
FAKE cuStreamSynchronize(void*) { return 0; }
FAKE cuStreamBeginCapture_v2(void*, int) { return 0; }
FAKE cuStreamEndCapture(void*, void** graph) { return handle(graph); }
FAKE cuGraphInstantiateWithFlags(void** exec, void*, unsigned long long) { return handle(exec); }
FAKE cuGraphLaunch(void*, void*) { return 0; }
FAKE cuGraphDestroy(void*) { return 0; }
FAKE cuGraphExecDestroy(void*) { return 0; }
FAKE cuEventCreate(void** event, unsigned) { return handle(event); }
FAKE cuEventDestroy_v2(void*) { return 0; }
FAKE cuEventRecord(void*, void*) { return 0; }
FAKE cuEventSynchronize(void*) { return 0; }
FAKE cuEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 1;
  return 0;
}
