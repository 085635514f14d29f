// The kernels for AVX-512 F, BW, DQ, VL. Compiler options: flags.cmake. Empty but on x86-64.
#if defined(__x86_64__)
#include "cpu/isa_unit.h"
#include "cpu/simd_avx512.h"

namespace tilewise::cpu {

constinit const Kernels kAvx512Kernels = kernels_of<Avx512, Avx512Thin, Avx512Narrow>("avx512");

}  // namespace tilewise::cpu
#endif
