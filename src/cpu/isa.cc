// On x86-64 the compiler's cpuid support asks xgetbv too: a set counts only if the system saves its
// registers. AArch64 always has NEON.
#include "cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>

namespace tilewise::cpu {

namespace {

struct Candidate {
  std::string name;
  const Kernels* kernels;  // null: not compiled for this kind of processor
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

#if defined(__x86_64__)
// The system gives the registers of tiles only to a process that asks.
bool has_amx() {
  constexpr unsigned kBf16AndTiles = (1u << 22) | (1u << 24);
  constexpr unsigned kTileState = (1u << 17) | (1u << 18);
  constexpr long kAskForState = 0x1023;
  constexpr long kTileData = 18;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kBf16AndTiles) != kBf16AndTiles) return false;
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState && syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

// Everything but bf16 is the avx512 unit's, and some of that.
const Kernels& amx_kernels() {
  static const Kernels kernels = [] {
    Kernels joined = kAvx512Kernels;
    joined.name = "amx";
    joined.tiles = &kAmxTiles;
    return joined;
  }();
  return kernels;
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
    const bool amx = avx512 && __builtin_cpu_supports("avx512bf16") && has_amx();
    sets.push_back({"amx", &amx_kernels(), amx});
    sets.push_back({"avx512", &kAvx512Kernels, avx512});
    sets.push_back({"avx2", &kAvx2Kernels, avx2});
#else
    for (const char* name : {"amx", "avx512", "avx2"}) sets.push_back({name, nullptr, false});
#endif
#if defined(__aarch64__)
    sets.push_back({"neon", &kNeonKernels, true});
#else
    sets.push_back({"neon", nullptr, false});
#endif
    sets.push_back({"scalar", &kScalarKernels, true});
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
      if (candidate.available) list.push_back(candidate.name);
    }
    return list;
  }();
  return names;
}

const Kernels* choose_kernels(std::string& why_not) {
  const char* const wanted = std::getenv("TILEWISE_ISA");
  const bool any = wanted == nullptr || *wanted == '\0';
  for (const Candidate& candidate : candidates()) {
    if (any ? candidate.available : candidate.name == wanted) {
      if (candidate.available) return candidate.kernels;
      why_not = std::string("TILEWISE_ISA is ") + wanted +
                ", which this machine cannot run (it has " + joined(available_isas()) + ")";
      return nullptr;
    }
  }
  why_not = std::string("TILEWISE_ISA is ") + (any ? "" : wanted) +
            ", expected scalar, neon, avx2, avx512 or amx";
  return nullptr;
}

}  // namespace tilewise::cpu
