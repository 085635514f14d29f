// The kernels for NEON. Compiler options: flags.cmake. Empty but on AArch64.
#if defined(__aarch64__)
#include "cpu/isa_unit.h"
#include "cpu/simd_neon.h"

namespace tilewise::cpu {

constinit const Kernels kNeonKernels = kernels_of<Neon, NeonThin>("neon");

}  // namespace tilewise::cpu
#endif
