// Loops that do one thing only. Bandwidths: eight running sums over vectors, buffers of half a
// cache (DRAM: four times the last cache). Exponentials: exp2 as attention kernels do it, range
// reduction and a polynomial of degree 5, eight vectors at once. Medians of a few tries.
#include "cli/roofs.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cli/machine.h"
#include "cli/measure.h"
#include "cpu/machine.h"
#include "device.h"
#include "device_roofs.h"

#if defined(__x86_64__)
#define TW_WIDE __attribute__((target("avx2,fma")))
#else
#define TW_WIDE
#endif
#define TW_ALWAYS __attribute__((always_inline)) inline

namespace tilewise::cli {

namespace {

constexpr int kVectors = 8;
constexpr int kTries = 7;
constexpr double kTrySeconds = 8e-3;
constexpr int64_t kDefaultCache[3] = {32 << 10, 512 << 10, 8 << 20};

using Floats = float __attribute__((vector_size(32)));
using Ints = int32_t __attribute__((vector_size(32)));

struct Free {
  void operator()(float* memory) const { ::operator delete (memory, std::align_val_t{64}); }
};
using Buffer = std::unique_ptr<float, Free>;

Buffer touched(int64_t bytes) {
  Buffer buffer(
      static_cast<float*>(::operator new (static_cast<size_t>(bytes), std::align_val_t{64})));
  std::fill_n(buffer.get(), static_cast<size_t>(bytes) / sizeof(float), 1.0f);
  return buffer;
}

template <class T>
void keep(T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O2", "fp-contract=fast")  // a * b + c in one instruction
#define TW_CONTRACTED
#endif

// Named sums, not an array: they must stay in registers at any optimisation level.
TW_ALWAYS void read_sums(const Floats* from, int64_t vectors) {
  Floats a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{};
  for (int64_t i = 0; i + kVectors <= vectors; i += kVectors) {
    a += from[i];
    b += from[i + 1];
    c += from[i + 2];
    d += from[i + 3];
    e += from[i + 4];
    f += from[i + 5];
    g += from[i + 6];
    h += from[i + 7];
  }
  Floats sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
  keep(sum);
}

TW_ALWAYS void add_exp2(Floats& sum, const Floats& x) {
  const Floats shifted = x + 12582912.0f;  // 1.5 * 2^23: the integer part lies in the low bits
  const Floats f = x - (shifted - 12582912.0f);
  Floats p = f * 1.3400e-3f + 9.6180e-3f;
  p = p * f + 5.5503e-2f;
  p = p * f + 2.4022e-1f;
  p = p * f + 6.9315e-1f;
  p = p * f + 1.0f;
  sum += (Floats)((Ints)p + ((Ints)shifted << 23));
}

TW_ALWAYS void exp2_sums(int64_t rounds) {
  Floats x{}, a{}, b{}, c{}, d{};
  for (int64_t i = 0; i < rounds; ++i) {
    x -= 1e-4f;
    add_exp2(a, x);
    add_exp2(b, x - 0.3f);
    add_exp2(c, x - 0.6f);
    add_exp2(d, x - 0.9f);
  }
  Floats sum = (a + b) + (c + d);
  keep(sum);
}

// Each loop twice: with AVX2 where there is one, and with what every machine of the kind has.
void read_plain(const Floats* from, int64_t vectors) { read_sums(from, vectors); }
void exp2_plain(int64_t rounds) { exp2_sums(rounds); }
#if defined(__x86_64__)
TW_WIDE void read_wide(const Floats* from, int64_t vectors) { read_sums(from, vectors); }
TW_WIDE void exp2_wide(int64_t rounds) { exp2_sums(rounds); }
bool wide() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
constexpr auto read_wide = read_plain;
constexpr auto exp2_wide = exp2_plain;
bool wide() { return false; }
#endif

#if defined(TW_CONTRACTED)
#pragma GCC pop_options
#endif

// Units a second of one thread's CPU time: the median of a few tries of `once`.
double usual_rate(double units, const std::function<void()>& once) {
  once();
  std::vector<double> rates;
  for (int i = 0; i < kTries; ++i) {
    double seconds = 0;
    double done = 0;
    const double start = seconds_now(Clock::thread_cpu);
    while (seconds < kTrySeconds) {
      once();
      done += units;
      seconds = seconds_now(Clock::thread_cpu) - start;
    }
    rates.push_back(done / seconds);
  }
  return quantile(rates, 0.5);
}

// The sum of what all threads reach beside each other.
double on_threads(int threads, const std::function<double()>& rate_of_one) {
  std::mutex mutex;
  double sum = 0;
  const auto work = [&] {
    const double rate = rate_of_one();
    const std::lock_guard<std::mutex> lock(mutex);
    sum += rate;
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return sum;
}

double read_rate(int64_t bytes) {
  const Buffer buffer = touched(bytes);
  const auto vectors = bytes / static_cast<int64_t>(sizeof(Floats));
  const int64_t times = std::max<int64_t>(1, (1 << 20) / bytes);
  return usual_rate(static_cast<double>(bytes * times), [&] {
    const auto* const from = reinterpret_cast<const Floats*>(buffer.get());
    for (int64_t i = 0; i < times; ++i)
      wide() ? read_wide(from, vectors) : read_plain(from, vectors);
  });
}

double copy_rate(int64_t bytes) {
  const Buffer from = touched(bytes / 2);
  const Buffer to = touched(bytes / 2);
  const auto half = static_cast<size_t>(bytes / 2);
  return usual_rate(static_cast<double>(bytes), [&] {
    std::memcpy(to.get(), from.get(), half);
    keep(*to);
  });
}

double exp_rate() {
  constexpr int64_t kRounds = 20000;
  constexpr size_t kLanes = sizeof(Floats) / sizeof(float);
  constexpr auto kEach = static_cast<double>(4 * kLanes);
  return usual_rate(kEach * kRounds, [] { wide() ? exp2_wide(kRounds) : exp2_plain(kRounds); });
}

// The cache that the cores share, by /sys: processors that share several report their sum
// elsewhere.
int64_t shared_cache_bytes(int64_t reported) {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  int64_t size = 0;
  char unit = ' ';
  if (!(file >> size >> unit)) return reported;
  size *= unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1;
  return reported > 0 ? std::min(size, reported) : size;
}

}  // namespace

MeasuredRoofs measure_roofs(int threads) {
  const Machine here = read_machine();
  std::array<int64_t, 3> caches = here.caches_bytes;
  for (size_t i = 0; i < 2; ++i) {
    if (caches[i] <= 0) caches[i] = kDefaultCache[i];
  }
  caches[2] = shared_cache_bytes(caches[2]);
  MeasuredRoofs roofs;
  MachineRoofs& machine = roofs.machine;
  // At three times, because the clock rate of a shared machine moves.
  const auto measure_arithmetic = [&] {
    machine.flops_per_s = std::max(machine.flops_per_s, cpu::measure_fma_peak(threads));
    machine.exps_per_s =
        std::max(machine.exps_per_s, on_threads(threads, [] { return exp_rate(); }));
  };
  measure_arithmetic();
  const auto read_on_all = [&](int64_t bytes) {
    const int64_t whole = std::max<int64_t>(4096, bytes / 512 * 512);
    return on_threads(threads, [whole] { return read_rate(whole); });
  };
  roofs.l1_bytes_per_s = read_on_all(caches[0] / 2);
  roofs.l2_bytes_per_s = read_on_all(caches[1] / 2);
  if (caches[2] > 0) roofs.l3_bytes_per_s = read_on_all(caches[2] / 2 / threads);
  measure_arithmetic();
  const int64_t last = caches[2] > 0 ? caches[2] : kDefaultCache[2];
  const int64_t free_bytes = here.available_bytes > 0 ? here.available_bytes : (1LL << 30);
  const int64_t far = std::min(std::max<int64_t>(4 * last, 64 << 20), free_bytes / 4) / threads;
  roofs.read_bytes_per_s = read_on_all(far);
  roofs.copy_bytes_per_s = on_threads(threads, [far] { return copy_rate(far / 512 * 512); });
  measure_arithmetic();
  machine.name = here.cpu;
  machine.bytes_per_s = std::max(roofs.read_bytes_per_s, roofs.copy_bytes_per_s);
  machine.fast_bytes = static_cast<double>(caches[1]);
  machine.fast_bytes_per_s = roofs.l2_bytes_per_s;
  machine.cache_bytes = static_cast<double>(caches[2]);
  machine.cores = threads;
  return roofs;
}

MeasuredRoofs measure_gpu_roofs(int device, DType dtype) {
  const DeviceRoofs measured = measure_device_roofs(device, dtype);
  MeasuredRoofs roofs;
  roofs.read_bytes_per_s = measured.read_bytes_per_s;
  roofs.copy_bytes_per_s = measured.copy_bytes_per_s;
  MachineRoofs& machine = roofs.machine;
  machine.name = device_name(device);
  machine.flops_per_s = measured.flops_per_s;
  machine.exps_per_s = measured.exps_per_s;
  machine.bytes_per_s = std::max(roofs.read_bytes_per_s, roofs.copy_bytes_per_s);
  machine.fast_bytes = static_cast<double>(measured.shared_bytes);
  machine.cores = measured.multiprocessors;
  machine.cache_bytes = static_cast<double>(measured.l2_bytes);
  return roofs;
}

}  // namespace tilewise::cli
