// The avx2 unit.
#include "cpu/simd_avx2.h"
#include "tests/speed/unit.h"

namespace tilewise::speed {

namespace {

bool available() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}

}  // namespace

constinit const Unit kAvx2 = unit_of<cpu::Avx2>("avx2", &available);

}  // namespace tilewise::speed
