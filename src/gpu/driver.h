// libcuda and NVRTC, found at run time with dlopen: no CUDA toolkit is needed to build, and one
// binary runs with or without a GPU. Only the entry points that are used are declared; where cuda.h
// and nvrtc.h are installed, tests/gpu/driver_test.cc compares every declaration and constant with
// them. Names and signatures follow those headers, so that their manuals apply.
// Docs: docs/jit.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tilewise::gpu {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUfunction = struct CUfunc_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;

inline constexpr CUresult kCudaSuccess = 0;
inline constexpr CUresult kCudaOutOfMemory = 2;
// CUdevice_attribute
inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributeL2Bytes = 38;
inline constexpr int kAttributeMajor = 75;
inline constexpr int kAttributeMinor = 76;
inline constexpr int kAttributeSharedOptin = 97;
// CUfunction_attribute
inline constexpr int kFunctionLocalBytes = 3;
inline constexpr int kFunctionRegisters = 4;
inline constexpr int kFunctionMaxDynamicShared = 8;
// CUpointer_attribute
inline constexpr int kPointerContext = 1;
inline constexpr int kPointerDeviceOrdinal = 9;
// CUtensorMap enumerations
inline constexpr int kMapFloat16 = 6;
inline constexpr int kMapBfloat16 = 9;
inline constexpr int kMapInterleaveNone = 0;
inline constexpr int kMapSwizzle128 = 3;
inline constexpr int kMapPromotionL2_128 = 2;
inline constexpr int kMapZeroFill = 0;
// CUstreamCaptureMode
inline constexpr int kCaptureThreadLocal = 1;

// The driver's entry points, all null until load() has found libcuda.
struct Driver {
  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuDriverGetVersion)(int* version);
  CUresult (*cuGetErrorName)(CUresult error, const char** name);
  CUresult (*cuGetErrorString)(CUresult error, const char** text);
  CUresult (*cuDeviceGetCount)(int* count);
  CUresult (*cuDeviceGet)(CUdevice* device, int ordinal);
  CUresult (*cuDeviceGetName)(char* name, int length, CUdevice device);
  CUresult (*cuDeviceGetAttribute)(int* value, int attribute, CUdevice device);
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext* context, CUdevice device);
  CUresult (*cuDevicePrimaryCtxRelease)(CUdevice device);
  CUresult (*cuCtxGetCurrent)(CUcontext* context);
  CUresult (*cuCtxGetDevice)(CUdevice* device);
  CUresult (*cuCtxPushCurrent)(CUcontext context);
  CUresult (*cuCtxPopCurrent)(CUcontext* context);
  CUresult (*cuCtxSynchronize)();
  CUresult (*cuPointerGetAttribute)(void* value, int attribute, CUdeviceptr pointer);
  CUresult (*cuLibraryLoadData)(CUlibrary* library, const void* code, int* jit_options,
                                void** jit_values, unsigned jit_count, int* library_options,
                                void** library_values, unsigned library_count);
  CUresult (*cuLibraryUnload)(CUlibrary library);
  CUresult (*cuLibraryGetKernel)(CUkernel* kernel, CUlibrary library, const char* name);
  CUresult (*cuKernelSetAttribute)(int attribute, int value, CUkernel kernel, CUdevice device);
  CUresult (*cuKernelGetAttribute)(int* value, int attribute, CUkernel kernel, CUdevice device);
  CUresult (*cuLaunchKernel)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CUstream stream, void** parameters,
                             void** extra);
  CUresult (*cuTensorMapEncodeTiled)(void* map, int type, uint32_t rank, void* address,
                                     const uint64_t* sizes, const uint64_t* stride_bytes,
                                     const uint32_t* box, const uint32_t* element_strides,
                                     int interleave, int swizzle, int promotion, int fill);
  CUresult (*cuMemAlloc)(CUdeviceptr* pointer, size_t bytes);
  CUresult (*cuMemFree)(CUdeviceptr pointer);
  CUresult (*cuMemAllocAsync)(CUdeviceptr* pointer, size_t bytes, CUstream stream);
  CUresult (*cuMemFreeAsync)(CUdeviceptr pointer, CUstream stream);
  CUresult (*cuMemcpyHtoD)(CUdeviceptr to, const void* from, size_t bytes);
  CUresult (*cuMemcpyDtoH)(void* to, CUdeviceptr from, size_t bytes);
  CUresult (*cuMemsetD32)(CUdeviceptr to, unsigned value, size_t count);
  CUresult (*cuStreamCreate)(CUstream* stream, unsigned flags);
  CUresult (*cuStreamDestroy)(CUstream stream);
  CUresult (*cuStreamSynchronize)(CUstream stream);
  CUresult (*cuStreamBeginCapture)(CUstream stream, int mode);
  CUresult (*cuStreamEndCapture)(CUstream stream, CUgraph* graph);
  CUresult (*cuGraphInstantiateWithFlags)(CUgraphExec* exec, CUgraph graph,
                                          unsigned long long flags);
  CUresult (*cuGraphLaunch)(CUgraphExec exec, CUstream stream);
  CUresult (*cuGraphDestroy)(CUgraph graph);
  CUresult (*cuGraphExecDestroy)(CUgraphExec exec);
  CUresult (*cuEventCreate)(CUevent* event, unsigned flags);
  CUresult (*cuEventDestroy)(CUevent event);
  CUresult (*cuEventRecord)(CUevent event, CUstream stream);
  CUresult (*cuEventSynchronize)(CUevent event);
  CUresult (*cuEventElapsedTime)(float* milliseconds, CUevent start, CUevent end);
};

using nvrtcResult = int;
using nvrtcProgram = struct NvrtcProgram*;

struct Nvrtc {
  const char* (*nvrtcGetErrorString)(nvrtcResult result);
  nvrtcResult (*nvrtcVersion)(int* major, int* minor);
  nvrtcResult (*nvrtcCreateProgram)(nvrtcProgram* program, const char* source, const char* name,
                                    int header_count, const char* const* headers,
                                    const char* const* include_names);
  nvrtcResult (*nvrtcDestroyProgram)(nvrtcProgram* program);
  nvrtcResult (*nvrtcCompileProgram)(nvrtcProgram program, int option_count,
                                     const char* const* options);
  nvrtcResult (*nvrtcGetCUBINSize)(nvrtcProgram program, size_t* bytes);
  nvrtcResult (*nvrtcGetCUBIN)(nvrtcProgram program, char* cubin);
  nvrtcResult (*nvrtcGetProgramLogSize)(nvrtcProgram program, size_t* bytes);
  nvrtcResult (*nvrtcGetProgramLog)(nvrtcProgram program, char* log);
};

// Loaded once for the process; null with the reason (what is missing, how to get it) in `why`.
const Driver* find_driver(std::string* why);
const Nvrtc* find_nvrtc(std::string* why);

// Where NVRTC was found, or "".
std::string nvrtc_path();

// The driver, or Error with Status::device_error and the reason.
const Driver& driver();

// Throws Error(device_error) with CUDA's name and text of the failure.
void check_cuda(CUresult result, const char* call);

// Makes the primary context of a device current for a scope, and leaves the caller's context as it
// was. Does nothing when a context of that device is current already.
class ScopedDevice {
 public:
  explicit ScopedDevice(CUdevice device);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace tilewise::gpu
