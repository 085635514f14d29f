// On x86-64 the compiler's cpuid support asks xgetbv too: a set counts only if the system saves its
// registers. AArch64 always has NEON. Whether products of bf16 pairs pay is measured: one costs as
// much as a multiply-add on some processors, and four times as much on others.
#include "cpu/isa.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>

namespace tilewise::cpu {

namespace {

// Two sets that differ in how they multiply bf16.
constexpr const char* kDotSet = "avx512bf16";
constexpr const char* kFmaSet = "avx512";

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
#endif

// A set that differs from another in how it multiplies bf16.
Kernels extended(const Kernels& kernels, const char* name, const TileKernels* tiles,
                 const PairKernels* pairs) {
  Kernels joined = kernels;
  joined.name = name;
  joined.tiles = tiles;
  joined.pairs = pairs;
  return joined;
}

#if defined(__x86_64__)
std::vector<Candidate> look() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  static const Kernels amx = extended(kAvx512Kernels, "amx", &kAmxTiles, nullptr);
  static const Kernels pairs = extended(kAvx512Kernels, kDotSet, nullptr, &kAvx512PairKernels);
  return {{"amx", &amx, bf16 && has_amx()},   {kDotSet, &pairs, bf16},
          {kFmaSet, &kAvx512Kernels, avx512}, {"avx2", &kAvx2Kernels, avx2},
          {"neonbf16", nullptr, false},       {"neon", nullptr, false},
          {"scalar", &kScalarKernels, true}};
}
#else
std::vector<Candidate> look() {
  std::vector<Candidate> sets;
  for (const char* name : {"amx", kDotSet, kFmaSet, "avx2"}) sets.push_back({name, nullptr, false});
#if defined(__aarch64__)
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16, which old headers lack
  static const Kernels pairs = extended(kNeonKernels, "neonbf16", nullptr, &kNeonPairKernels);
  sets.push_back({"neonbf16", &pairs, (getauxval(AT_HWCAP2) & kBf16) != 0});
  sets.push_back({"neon", &kNeonKernels, true});
#else
  sets.push_back({"neonbf16", nullptr, false});
  sets.push_back({"neon", nullptr, false});
#endif
  sets.push_back({"scalar", &kScalarKernels, true});
  return sets;
}
#endif

const std::vector<Candidate>& candidates() {
  static const std::vector<Candidate> list = look();
  return list;
}

#if defined(__x86_64__)
double seconds_of(double (*run_rounds)(int64_t)) {
  constexpr int64_t kRounds = 200;  // 2400 instructions, about a microsecond
  const auto before = std::chrono::steady_clock::now();
  run_rounds(kRounds);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}
#endif

// Time of a product of pairs over that of a multiply-add: the least of three tries, by turns.
double dot_over_fma() {
#if defined(__x86_64__)
  std::array<double, 2> least = {1, 1};
  for (int i = 0; i < 3; ++i) {
    least[0] = std::min(least[0], seconds_of(kAvx512Kernels.fma_rounds));
    least[1] = std::min(least[1], seconds_of(kAvx512PairKernels.dot_rounds));
  }
  return least[1] / std::max(least[0], 1e-9);
#else
  return 1;
#endif
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::vector<std::string> best_first(std::vector<std::string> isas, double dot_over_fma) {
  constexpr double kDotPays = 1.6;
  const auto dot = std::find(isas.begin(), isas.end(), kDotSet);
  const auto fma = std::find(isas.begin(), isas.end(), kFmaSet);
  if (dot != isas.end() && fma != isas.end() && (dot_over_fma < kDotPays) != (dot < fma)) {
    std::iter_swap(dot, fma);
  }
  return isas;
}

const std::vector<std::string>& available_isas() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Candidate& candidate : candidates()) {
      if (candidate.available) list.push_back(candidate.name);
    }
    const bool has_dot = std::find(list.begin(), list.end(), kDotSet) != list.end();
    return has_dot ? best_first(list, dot_over_fma()) : list;
  }();
  return names;
}

const Kernels* choose_kernels(std::string& why_not) {
  const char* const set = std::getenv("TILEWISE_ISA");
  const bool any = set == nullptr || *set == '\0';
  const std::string wanted = any ? available_isas().front() : set;
  for (const Candidate& candidate : candidates()) {
    if (candidate.name != wanted) continue;
    if (candidate.available) return candidate.kernels;
    why_not = "TILEWISE_ISA is " + wanted + ", which this machine cannot run (it has " +
              joined(available_isas()) + ")";
    return nullptr;
  }
  why_not = "TILEWISE_ISA is " + wanted +
            ", expected scalar, neon, neonbf16, avx2, avx512, avx512bf16 or amx";
  return nullptr;
}

}  // namespace tilewise::cpu
