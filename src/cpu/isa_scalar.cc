// The kernels for any machine. Compiler options: flags.cmake.
#include "cpu/isa_unit.h"
#include "cpu/simd_scalar.h"

namespace tilewise::cpu {

constinit const Kernels kScalarKernels = kernels_of<Scalar, ScalarThin>("scalar");

}  // namespace tilewise::cpu
