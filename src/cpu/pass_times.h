// How long the passes of `standard` take, for `tilewise bench`: while a PassWatch lives, the calls
// that its thread makes add to it.
#pragma once

#include <cstddef>
#include <span>

namespace tilewise::cpu {

struct PassTime {
  const char* pass = nullptr;  // "scores", "softmax", "out"; backward: "d_scores", "d_q", "d_kv"
  double seconds = 0;          // of all calls
  int calls = 0;
};

class PassWatch {
 public:
  explicit PassWatch(double (*clock)());  // in seconds
  ~PassWatch();
  PassWatch(const PassWatch&) = delete;
  PassWatch& operator=(const PassWatch&) = delete;
  // In the order of their first run.
  std::span<const PassTime> times() const { return {times_, static_cast<size_t>(count_)}; }

  // The innermost watch of this thread, or null.
  static PassWatch* current();
  double now() const { return now_(); }
  void add(const char* pass, double seconds);

 private:
  static constexpr int kMostPasses = 8;
  double (*now_)();
  PassWatch* outer_;
  PassTime times_[kMostPasses];
  int count_ = 0;
};

}  // namespace tilewise::cpu
