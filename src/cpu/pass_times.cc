// The stack of watches is one pointer a thread; without a watch a pass costs one look at it.
#include "cpu/pass_times.h"

#include <cstring>

namespace tilewise::cpu {

namespace {
thread_local PassWatch* innermost = nullptr;
}  // namespace

PassWatch::PassWatch(double (*clock)()) : now_(clock), outer_(innermost) { innermost = this; }
PassWatch::~PassWatch() { innermost = outer_; }
PassWatch* PassWatch::current() { return innermost; }

void PassWatch::add(const char* pass, double seconds) {
  for (int i = 0; i < kMostPasses; ++i) {
    if (i == count_) times_[count_++].pass = pass;
    if (std::strcmp(times_[i].pass, pass) != 0) continue;
    times_[i].seconds += seconds;
    ++times_[i].calls;
    return;
  }
}

}  // namespace tilewise::cpu
