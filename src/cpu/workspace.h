// Cuts a workspace into arrays, each on a 64-byte boundary. Run twice: once over nothing, for the
// size, then over the caller's memory, so that the two cannot disagree.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewise::cpu {

class WorkspaceCutter {
 public:
  explicit WorkspaceCutter(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class T>
  T* take(int64_t count) {
    char* const here = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(here);
  }
  size_t used() const { return used_; }

 private:
  char* memory_;
  size_t used_ = 0;
};

}  // namespace tilewise::cpu
