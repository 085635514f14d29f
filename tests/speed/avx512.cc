// The avx512 unit.
#include "cpu/simd_avx512.h"
#include "tests/speed/unit.h"

namespace tilewise::speed {

namespace {

bool available() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

constinit const Unit kAvx512 = unit_of<cpu::Avx512>("avx512", &available);

}  // namespace tilewise::speed
