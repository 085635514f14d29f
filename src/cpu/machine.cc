// Reads the system and times multiply-adds; see machine.h.
#include "cpu/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <fstream>
#include <mutex>

#include "cpu/isa.h"
#include "cpu/threads.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cpu {

namespace {

constexpr int64_t kRounds = 250000;  // about half a millisecond
constexpr int kWarmUps = 2;          // until the clock has risen
constexpr int kTries = 11;           // the median counts: clocks of virtual machines jump

std::string model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    return colon == std::string::npos ? "" : line.substr(std::min(colon + 2, line.size()));
  }
  return "";
}

int64_t cache_bytes(int name) { return std::max<int64_t>(0, sysconf(name)); }

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
  machine.l1d_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE);
  machine.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE);
  machine.l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE);
  return machine;
}

double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double usual_rate(const Kernels& kernels) {
  std::array<double, kTries> rates = {};
  for (int i = -kWarmUps; i < kTries; ++i) {
    const double before = thread_seconds();
    const double flops = kernels.fma_rounds(kRounds);
    const double seconds = thread_seconds() - before;
    if (i >= 0) rates[static_cast<size_t>(i)] = flops / std::max(seconds, 1e-9);
  }
  std::sort(rates.begin(), rates.end());
  return rates[kTries / 2];
}

}  // namespace

const CpuMachine& cpu_machine() {
  static const CpuMachine machine = look();
  return machine;
}

double measure_fma_peak(int threads) {
  std::string why_not;
  const Kernels* const kernels = choose_kernels(why_not);
  if (kernels == nullptr) return 0;
  const int count = std::clamp(threads, 1, cpu_machine().cores);
  std::mutex mutex;
  double sum = 0;
  parallel_for(count, count, [&](int64_t, int) {
    const double rate = usual_rate(*kernels);
    const std::lock_guard<std::mutex> lock(mutex);
    sum += rate;
  });
  return sum;
}

}  // namespace tilewise::cpu
