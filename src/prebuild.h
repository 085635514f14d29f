// GPU kernels made ahead of time: what `tilewise prebuild` fills a pack with, which is read before
// NVRTC is asked (docs/jit.md). Implemented in src/gpu/backend.cc; needs NVRTC, but no GPU.
#pragma once

#include <string>
#include <string_view>

#include "problem.h"

namespace tilewise {

// Compiles the kernel that a plan of `problem` (tensors in device memory) takes on `arch`, such as
// "sm_90a", into the folder `pack`, and returns the kernel's identity. Throws Error.
std::string prebuild_kernel(const Problem& problem, std::string_view arch, const std::string& pack);

// The pack that this program reads: tilewise-kernels beside it.
std::string own_pack();

}  // namespace tilewise
