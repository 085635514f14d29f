#include "cpu/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <mutex>

#include "cpu/isa.h"
#include "cpu/threads.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cpu {

namespace {

constexpr int64_t kRounds = 40000;  // about 0.1 ms
constexpr int kWarmUps = 10;        // until the clock has risen
constexpr int kTries = 20;          // the best counts: the rest were disturbed

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

double best_rate(const Kernels& kernels) {
  double best = 0;
  for (int i = 0; i < kWarmUps + kTries; ++i) {
    const double before = thread_seconds();
    const double flops = kernels.fma_rounds(kRounds);
    const double seconds = thread_seconds() - before;
    if (i >= kWarmUps && seconds > 0) best = std::max(best, flops / seconds);
  }
  return best;
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
    const double rate = best_rate(*kernels);
    const std::lock_guard<std::mutex> lock(mutex);
    sum += rate;
  });
  return sum;
}

}  // namespace tilewise::cpu
