// Which instruction set runs: the best this machine has, or the one that TILEWISE_ISA names.
#pragma once

#include <string>
#include <vector>

#include "cpu/call.h"

namespace tilewise::cpu {

// Names of the sets this machine can run, best first: "amx", "avx512", "avx2", "neon",
// "scalar".
const std::vector<std::string>& available_isas();

// The kernels to use, or null with the reason in `why_not`. Reads TILEWISE_ISA each time.
const Kernels* choose_kernels(std::string& why_not);

}  // namespace tilewise::cpu
