// Which instruction set runs: the best this machine has, or the one that TILEWISE_ISA names.
#pragma once

#include <string>
#include <vector>

#include "cpu/call.h"

namespace tilewise::cpu {

// Names of the sets this machine can run, best first: "amx", "avx512bf16", "avx512", "avx2",
// "neonbf16", "neon", "scalar".
const std::vector<std::string>& available_isas();

// Of "avx512bf16" and "avx512" the better one goes first, given how many times as long a product of
// pairs takes as a multiply-add. available_isas() measures that once, in some microseconds.
std::vector<std::string> best_first(std::vector<std::string> isas, double dot_over_fma);

// The kernels to use, or null with the reason in `why_not`. Reads TILEWISE_ISA each time.
const Kernels* choose_kernels(std::string& why_not);

}  // namespace tilewise::cpu
