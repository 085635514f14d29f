// What a call costs: time (wall, or the thread's CPU time), memory, and the floating-point
// operations that its result needs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "case/device_mirror.h"
#include "device.h"
#include "problem.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {

enum class Clock { wall, thread_cpu };
double seconds_now(Clock clock);

// Growth of the process's resident memory: the peak since begin() minus the size at begin().
class MemoryMeter {
 public:
  MemoryMeter();
  // -1: the kernel does not say.
  int64_t peak_growth_bytes() const;

 private:
  int64_t start_bytes_ = -1;
};

struct Timing {
  double median_s = 0;
  double p10_s = 0;
  double p90_s = 0;
  int samples = 0;
};

// Runs `call` once unmeasured, then takes samples of at least a few milliseconds each.
Timing time_calls(const std::function<void()>& call, int repetitions, Clock clock);
// Linear interpolation between the sorted values; q in [0, 1].
double quantile(std::vector<double> values, double q);

// Pairs (query row, key) that the mask shows, over all sequences; one head.
int64_t visible_pairs(const Problem& problem, const Tensors& tensors);

// Useful operations: forward 2 (d + dv) a visible pair and query head (Q K^T and P V); backward
// 2 (3 d + 2 dv) (S again, dP, dV, dK, dQ).
double useful_flops(const Problem& problem, const Tensors& tensors);

// "1.25 GiB", "480 KiB", "0 B".
std::string bytes_text(double bytes);
// "12.3 ms", "1.25 s".
std::string seconds_text(double seconds);

// A plan with its own workspace, every page of it touched: a first run costs no more than others.
// For a backend that takes device memory the tensors are copied there; fetch() brings them back.
class PreparedCall {
 public:
  PreparedCall(Direction direction, const Tensors& tensors, const Options& options);
  // Returns when the result is there.
  void run() const;
  // Device to host; nothing to do for a call that runs in host memory.
  void fetch() const;
  bool on_device() const { return mirror_ != nullptr; }
  // Time of one call, on a device by events around many.
  Timing time(int repetitions, Clock clock) const;
  const Plan& plan() const { return plan_; }

 private:
  struct Free {
    void operator()(void* data) const;
  };
  void enqueue() const;
  Plan plan_;
  Tensors tensors_;
  std::unique_ptr<void, Free> workspace_;
  std::unique_ptr<DeviceMirror> mirror_;
  DeviceBuffer device_workspace_;
};

}  // namespace tilewise::cli
