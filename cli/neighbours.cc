// Reads the first line of /proc/stat (proc(5)): busy time of all cores in clock ticks.
#include "cli/neighbours.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>

#include "cli/measure.h"

namespace tilewise::cli {

namespace {

double own_seconds() {
  timespec now = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double all_seconds() {
  std::ifstream file("/proc/stat");
  std::string name;
  std::array<double, 8> ticks{};  // user nice system idle iowait irq softirq steal
  if (!(file >> name) || name != "cpu") return -1;
  for (double& tick : ticks) {
    if (!(file >> tick)) return -1;
  }
  const double busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6];
  return busy / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

Neighbours::Neighbours()
    : own_(own_seconds()), all_(all_seconds()), wall_(seconds_now(Clock::wall)) {}

double Neighbours::busy_cores() const {
  const double all = all_seconds();
  const double wall = seconds_now(Clock::wall) - wall_;
  if (all < 0 || all_ < 0 || wall <= 0) return 0;
  return std::max(0.0, (all - all_ - (own_seconds() - own_)) / wall);
}

}  // namespace tilewise::cli
