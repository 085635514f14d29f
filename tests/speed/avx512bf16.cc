// The products of pairs of the avx512bf16 unit.
#include "cpu/simd_avx512_pairs.h"
#include "tests/speed/unit.h"

namespace tilewise::speed {

namespace {

bool available() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16");
}

}  // namespace

constinit const Unit kAvx512Bf16 = unit_of<cpu::Avx512Pairs>("avx512bf16", &available);

}  // namespace tilewise::speed
