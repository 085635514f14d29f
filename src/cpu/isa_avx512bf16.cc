// Forward of bf16 by AVX512-BF16. Compiler options: flags.cmake. Empty but on x86-64.
#if defined(__x86_64__)
#include "cpu/isa_unit.h"
#include "cpu/simd_avx512_pairs.h"

namespace tilewise::cpu {

constinit const PairKernels kAvx512PairKernels =
    pair_kernels_of<Avx512Pairs, Avx512PairsThin, Avx512PairsNarrow>();

}  // namespace tilewise::cpu
#endif
