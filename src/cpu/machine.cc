// Reads the system and times multiply-adds; see machine.h.
#include "cpu/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <mutex>

#include "cpu/isa.h"
#include "cpu/threads.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cpu {

namespace {

constexpr int64_t kRounds = 250000;     // about half a millisecond
constexpr int64_t kTileRounds = 25000;  // the same
constexpr int kWarmUps = 2;             // until the clock has risen
constexpr int kTries = 11;              // the median counts: clocks of virtual machines jump

std::string model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    return colon == std::string::npos ? "" : line.substr(std::min(colon + 2, line.size()));
  }
  return "";
}

std::string first_word(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// The data or unified cache of a level, as one core sees it. Linux knows; sysconf, asked where it
// does not say, adds up the L3 of all core groups on AMD.
int64_t cache_bytes(int level, int sysconf_name) {
  const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index";
  for (int i = 0; i < 8; ++i) {
    const std::string index = folder + std::to_string(i) + "/";
    const std::string size = first_word(index + "size");  // "32768K"
    if (size.empty()) break;
    if (first_word(index + "level") != std::to_string(level)) continue;
    if (first_word(index + "type") == "Instruction") continue;
    const int64_t unit = size.back() == 'K' ? 1024 : size.back() == 'M' ? 1024 * 1024 : 1;
    return std::strtoll(size.c_str(), nullptr, 10) * unit;
  }
  return std::max<int64_t>(0, sysconf(sysconf_name));
}

CpuMachine look() {
  CpuMachine machine;
  machine.model = model_name();
  std::string why_not;
  const Kernels* const kernels = choose_kernels(why_not);
  machine.isa = kernels == nullptr ? "none" : kernels->name;
  machine.isas = available_isas();
  const int threads = num_threads();
  cpu_set_t allowed;
  machine.cores =
      sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : threads;
  machine.l1d_bytes = cache_bytes(1, _SC_LEVEL1_DCACHE_SIZE);
  machine.l2_bytes = cache_bytes(2, _SC_LEVEL2_CACHE_SIZE);
  machine.l3_bytes = cache_bytes(3, _SC_LEVEL3_CACHE_SIZE);
  return machine;
}

double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double usual_rate(double (*run_rounds)(int64_t), int64_t rounds) {
  std::array<double, kTries> rates = {};
  for (int i = -kWarmUps; i < kTries; ++i) {
    const double before = thread_seconds();
    const double flops = run_rounds(rounds);
    const double seconds = thread_seconds() - before;
    if (i >= 0) rates[static_cast<size_t>(i)] = flops / std::max(seconds, 1e-9);
  }
  std::sort(rates.begin(), rates.end());
  return rates[kTries / 2];
}

double sum_of_rates(int threads, double (*run_rounds)(int64_t), int64_t rounds) {
  const int count = std::clamp(threads, 1, cpu_machine().cores);
  std::mutex mutex;
  double sum = 0;
  parallel_for(count, count, [&](int64_t, int) {
    const double rate = usual_rate(run_rounds, rounds);
    const std::lock_guard<std::mutex> lock(mutex);
    sum += rate;
  });
  return sum;
}

}  // namespace

const CpuMachine& cpu_machine() {
  static const CpuMachine machine = look();
  return machine;
}

double measure_fma_peak(int threads) {
  std::string why_not;
  const Kernels* const kernels = choose_kernels(why_not);
  return kernels == nullptr ? 0 : sum_of_rates(threads, kernels->fma_rounds, kRounds);
}

double measure_matrix_peak(int threads) {
  std::string why_not;
  const Kernels* const kernels = choose_kernels(why_not);
  if (kernels == nullptr) return 0;
  if (kernels->tiles != nullptr) {
    return sum_of_rates(threads, kernels->tiles->dot_rounds, kTileRounds);
  }
  if (kernels->pairs == nullptr) return 0;
  return sum_of_rates(threads, kernels->pairs->dot_rounds, kRounds);
}

}  // namespace tilewise::cpu
