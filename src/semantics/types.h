// Integer names for headers that the host, the CPU kernels and the GPU compiler share, none of
// which may include the standard library here. TW_FN marks a function as callable on host and
// device.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define TW_FN __host__ __device__ inline
#else
#define TW_FN __attribute__((always_inline)) inline
#endif

namespace tilewise {
namespace semantics {

using i64 = long long;
using u64 = unsigned long long;
using u32 = unsigned int;

}  // namespace semantics
}  // namespace tilewise
