// The compiler's cpuid support asks xgetbv too: a set counts only if the system saves its
// registers.
#include "cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>

namespace tilewise::cpu {

namespace {

struct Candidate {
  const Kernels* kernels;
  bool available;
};

#if defined(__x86_64__)
// clang 14 does not know the name "f16c".
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

const std::vector<Candidate>& candidates() {
  static const std::vector<Candidate> list = [] {
    std::vector<Candidate> sets;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi2") && has_f16c();
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    sets.push_back({&kAvx512Kernels, avx512});
    sets.push_back({&kAvx2Kernels, avx2});
#endif
    sets.push_back({&kScalarKernels, true});
    return sets;
  }();
  return list;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

const std::vector<std::string>& available_isas() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Candidate& candidate : candidates()) {
      if (candidate.available) list.emplace_back(candidate.kernels->name);
    }
    return list;
  }();
  return names;
}

const Kernels* choose_kernels(std::string& why_not) {
  const char* const wanted = std::getenv("TILEWISE_ISA");
  const bool any = wanted == nullptr || *wanted == '\0';
  for (const Candidate& candidate : candidates()) {
    if (any ? candidate.available : candidate.kernels->name == std::string(wanted)) {
      if (candidate.available) return candidate.kernels;
      why_not = std::string("TILEWISE_ISA is ") + wanted +
                ", which this machine cannot run (it has " + joined(available_isas()) + ")";
      return nullptr;
    }
  }
  why_not =
      std::string("TILEWISE_ISA is ") + (any ? "" : wanted) + ", expected scalar, avx2 or avx512";
  return nullptr;
}

}  // namespace tilewise::cpu
