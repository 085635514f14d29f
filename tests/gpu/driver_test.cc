// Compares driver.h with cuda.h and nvrtc.h where they are installed: a wrong declaration or
// constant does not compile. Opaque handles of ours and theirs are different types of one size, so
// signatures are compared by their parameter counts, sizes and kinds.
#include "driver.h"

// Our name, the symbol that is loaded. cuda.h redefines plain names as macros, so the types of ours
// are taken before it is included.
#define TW_DRIVER_CALLS(X)                                    \
  X(cuInit, cuInit)                                           \
  X(cuDriverGetVersion, cuDriverGetVersion)                   \
  X(cuGetErrorName, cuGetErrorName)                           \
  X(cuGetErrorString, cuGetErrorString)                       \
  X(cuDeviceGetCount, cuDeviceGetCount)                       \
  X(cuDeviceGet, cuDeviceGet)                                 \
  X(cuDeviceGetName, cuDeviceGetName)                         \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute)               \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)       \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)  \
  X(cuCtxGetCurrent, cuCtxGetCurrent)                         \
  X(cuCtxGetDevice, cuCtxGetDevice)                           \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2)                    \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2)                      \
  X(cuCtxSynchronize, cuCtxSynchronize)                       \
  X(cuPointerGetAttribute, cuPointerGetAttribute)             \
  X(cuLibraryLoadData, cuLibraryLoadData)                     \
  X(cuLibraryUnload, cuLibraryUnload)                         \
  X(cuLibraryGetKernel, cuLibraryGetKernel)                   \
  X(cuKernelSetAttribute, cuKernelSetAttribute)               \
  X(cuKernelGetAttribute, cuKernelGetAttribute)               \
  X(cuLaunchKernel, cuLaunchKernel)                           \
  X(cuTensorMapEncodeTiled, cuTensorMapEncodeTiled)           \
  X(cuMemAlloc, cuMemAlloc_v2)                                \
  X(cuMemFree, cuMemFree_v2)                                  \
  X(cuMemAllocAsync, cuMemAllocAsync)                         \
  X(cuMemFreeAsync, cuMemFreeAsync)                           \
  X(cuMemcpyHtoD, cuMemcpyHtoD_v2)                            \
  X(cuMemcpyDtoH, cuMemcpyDtoH_v2)                            \
  X(cuMemsetD32, cuMemsetD32_v2)                              \
  X(cuStreamCreate, cuStreamCreate)                           \
  X(cuStreamDestroy, cuStreamDestroy_v2)                      \
  X(cuStreamSynchronize, cuStreamSynchronize)                 \
  X(cuStreamBeginCapture, cuStreamBeginCapture_v2)            \
  X(cuStreamEndCapture, cuStreamEndCapture)                   \
  X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags) \
  X(cuGraphLaunch, cuGraphLaunch)                             \
  X(cuGraphDestroy, cuGraphDestroy)                           \
  X(cuGraphExecDestroy, cuGraphExecDestroy)                   \
  X(cuEventCreate, cuEventCreate)                             \
  X(cuEventDestroy, cuEventDestroy_v2)                        \
  X(cuEventRecord, cuEventRecord)                             \
  X(cuEventSynchronize, cuEventSynchronize)                   \
  X(cuEventElapsedTime, cuEventElapsedTime_v2)
#define TW_NVRTC_CALLS(X)                           \
  X(nvrtcGetErrorString, nvrtcGetErrorString)       \
  X(nvrtcVersion, nvrtcVersion)                     \
  X(nvrtcCreateProgram, nvrtcCreateProgram)         \
  X(nvrtcDestroyProgram, nvrtcDestroyProgram)       \
  X(nvrtcCompileProgram, nvrtcCompileProgram)       \
  X(nvrtcGetCUBINSize, nvrtcGetCUBINSize)           \
  X(nvrtcGetCUBIN, nvrtcGetCUBIN)                   \
  X(nvrtcGetProgramLogSize, nvrtcGetProgramLogSize) \
  X(nvrtcGetProgramLog, nvrtcGetProgramLog)

namespace ours {
#define TW_TYPE(NAME, THEIRS) using NAME##_type = decltype(tilewise::gpu::Driver::NAME);
TW_DRIVER_CALLS(TW_TYPE)
#undef TW_TYPE
#define TW_TYPE(NAME, THEIRS) using NAME##_type = decltype(tilewise::gpu::Nvrtc::NAME);
TW_NVRTC_CALLS(TW_TYPE)
#undef TW_TYPE
}  // namespace ours

#include <cuda.h>
#include <nvrtc.h>

#include <cstdio>
#include <string>
#include <type_traits>

namespace {

// Same size and kind: pointer, integer or enumeration, floating point.
template <class A, class B>
constexpr bool kAlike = (std::is_void_v<A> && std::is_void_v<B>) ||
                        (sizeof(std::conditional_t<std::is_void_v<A>, char, A>) ==
                             sizeof(std::conditional_t<std::is_void_v<B>, char, B>) &&
                         std::is_pointer_v<A> == std::is_pointer_v<B> &&
                         std::is_floating_point_v<A> == std::is_floating_point_v<B>);

template <class A, class B>
struct SameCall : std::false_type {};
template <class R, class... P, class S, class... Q>
struct SameCall<R (*)(P...), S (*)(Q...)>
    : std::bool_constant<sizeof...(P) == sizeof...(Q) && kAlike<R, S>> {
  static constexpr bool parameters() {
    if constexpr (sizeof...(P) == sizeof...(Q)) return (kAlike<P, Q> && ...);
    return false;
  }
  static_assert(parameters());
};

#define TW_SAME(NAME, THEIRS) \
  static_assert(SameCall<ours::NAME##_type, decltype(&::THEIRS)>::value, #NAME);
TW_DRIVER_CALLS(TW_SAME)
TW_NVRTC_CALLS(TW_SAME)
#undef TW_SAME

using namespace tilewise::gpu;
static_assert(kCudaSuccess == CUDA_SUCCESS);
static_assert(kCudaOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kAttributeMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kAttributeL2Bytes == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
static_assert(kAttributeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kAttributeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kAttributeSharedOptin == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(kFunctionLocalBytes == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
static_assert(kFunctionRegisters == CU_FUNC_ATTRIBUTE_NUM_REGS);
static_assert(kFunctionMaxDynamicShared == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(kPointerContext == CU_POINTER_ATTRIBUTE_CONTEXT);
static_assert(kPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kMapFloat16 == CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
static_assert(kMapBfloat16 == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
static_assert(kMapInterleaveNone == CU_TENSOR_MAP_INTERLEAVE_NONE);
static_assert(kMapSwizzle128 == CU_TENSOR_MAP_SWIZZLE_128B);
static_assert(kMapPromotionL2_128 == CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
static_assert(kMapZeroFill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
static_assert(kCaptureThreadLocal == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(sizeof(CUtensorMap) == 128);

}  // namespace

int main() {
  std::string why;
  const bool driver = tilewise::gpu::find_driver(&why) != nullptr;
  std::printf("driver: %s\n", driver ? "found" : why.c_str());
  const bool nvrtc = tilewise::gpu::find_nvrtc(&why) != nullptr;
  std::printf("nvrtc: %s\n", nvrtc ? tilewise::gpu::nvrtc_path().c_str() : why.c_str());
  return 0;
}
