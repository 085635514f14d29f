// Forward of bf16 by BFDOT. Compiler options: flags.cmake. Empty but on AArch64.
#if defined(__aarch64__)
#include "cpu/isa_unit.h"
#include "cpu/simd_neon_pairs.h"

namespace tilewise::cpu {

constinit const PairKernels kNeonPairKernels = pair_kernels_of<NeonPairs, NeonPairsThin>();

}  // namespace tilewise::cpu
#endif
