// The processor as the CPU backend sees it, and its measured peak, for reports: no plan depends on
// either.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tilewise::cpu {

struct CpuMachine {
  std::string model;              // the vendor's name
  std::string isa;                // the instruction set that runs: TILEWISE_ISA or the best
  std::vector<std::string> isas;  // those it can run, best first
  int cores = 0;                  // that this process may use
  int64_t l1d_bytes = 0;          // 0: the system does not say
  int64_t l2_bytes = 0;
  int64_t l3_bytes = 0;
};

const CpuMachine& cpu_machine();

// Peak of fp32 multiply-adds in FLOP/s: the sum over `threads` threads (at most one a core) of what
// each usually reaches in half a millisecond of its CPU time, in the instruction set that runs. 0
// when TILEWISE_ISA names none that can.
double measure_fma_peak(int threads);
// The same of bf16 products, on matrix tiles or of pairs in vectors; 0 where the instruction set
// that runs has neither.
double measure_matrix_peak(int threads);

}  // namespace tilewise::cpu
