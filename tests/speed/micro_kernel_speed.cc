// The micro-kernel alone reaches a share of the multiply-add peak that this run measures: the one
// test that times. About 93 % is usual on a Zen 3. Each figure is the fastest of many short runs
// that take turns, and where that is too little, of up to twenty times as many, so that a busy
// machine does not fail it; and a product of one vector, which waits for every sum, must stay below
// the bound, so that it can fail.
#include <time.h>

#include <algorithm>
#include <cstdio>

#include "tests/speed/micro_kernel.h"

namespace tilewise::speed {

namespace {

constexpr double kLeastShare = 0.70;
constexpr int kTurns = 600;
constexpr int kTries = 20;
constexpr double kSecondsOfRun = 1e-4;

double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of(const Call& call, int count, double& flops) {
  const double before = thread_seconds();
  flops = call.run(count);
  return thread_seconds() - before;
}

struct Timed {
  const Call* call;
  int count = 1;
  double best = 0;  // FLOP/s

  explicit Timed(const Call& timed) : call(&timed) {
    double flops = 0;
    while (seconds_of(*call, count, flops) < kSecondsOfRun) count *= 2;
  }
  void take_turn() {
    double flops = 0;
    const double seconds = seconds_of(*call, count, flops);
    if (seconds > 0) best = std::max(best, flops / seconds);
  }
};

struct Timings {
  Timed peak;
  Timed products[3];
  Timed slow;

  explicit Timings(const Unit& unit)
      : peak(unit.peak),
        products{Timed(unit.products[0]), Timed(unit.products[1]), Timed(unit.products[2])},
        slow(unit.slow) {}

  void take_turns() {
    for (int turn = 0; turn < kTurns; ++turn) {
      peak.take_turn();
      for (Timed& product : products) product.take_turn();
      slow.take_turn();
    }
  }
  double share(const Timed& timed) const { return timed.best / peak.best; }
  double least_share() const {
    double least = share(products[0]);
    for (const Timed& product : products) least = std::min(least, share(product));
    return least;
  }
};

bool check(const Unit& unit, const Call& call, double share, bool holds) {
  std::printf("%s %s: %.1f %% of the peak, %s %.0f %%\n", unit.name, call.name, 100 * share,
              holds ? "as bounded by" : "FAILED:", 100 * kLeastShare);
  return holds;
}

// How many of its checks fail.
int failures_of(const Unit& unit) {
  Timings timings(unit);
  int tries = 0;
  do {
    timings.take_turns();
  } while (++tries < kTries && timings.least_share() < kLeastShare);
  std::printf("%s peak: %.1f GFLOP/s, %d turns\n", unit.name, timings.peak.best * 1e-9,
              tries * kTurns);
  int failures = 0;
  for (const Timed& product : timings.products) {
    const double share = timings.share(product);
    failures += !check(unit, *product.call, share, share >= kLeastShare);
  }
  const double share = timings.share(timings.slow);
  return failures + !check(unit, *timings.slow.call, share, share < kLeastShare);
}

}  // namespace

int run() {
  int failures = 0;
  for (const Unit* unit : {&kAvx2, &kAvx512, &kAvx512Bf16}) {
    if (unit->available()) {
      failures += failures_of(*unit);
    } else {
      std::printf("%s: not of this machine, skipped\n", unit->name);
    }
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace tilewise::speed

int main() { return tilewise::speed::run(); }
