// The kernels for AVX2, FMA, F16C. Compiler options: flags.cmake. Empty but on x86-64.
#if defined(__x86_64__)
#include "cpu/isa_unit.h"
#include "cpu/simd_avx2.h"

namespace tilewise::cpu {

constinit const Kernels kAvx2Kernels = kernels_of<Avx2, Avx2Thin>("avx2");

}  // namespace tilewise::cpu
#endif
