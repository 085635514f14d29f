// Guarded: a block of memory that shows what is done to it.
//
//   [no access][canary 4 KiB][ data ][canary 4 KiB][no access]      outputs, workspaces
//   [no access][canary .........][ data ][no access]                inputs: a read past the end
//   faults
//
// Everything is filled with a repeating poison of NaN, Inf and 65504 before it is used, so that
// bytes nobody may read turn into wrong results, and bytes nobody may write show a change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tilewise/tilewise.hpp"

namespace tilewise {

enum class Poison { on, off };  // off: plain memory without canaries or guards, for benches

class Guarded {
 public:
  enum class Place { between_canaries, flush_with_end };

  Guarded() = default;
  // data() is 64-byte aligned, or for flush_with_end as aligned as `bytes` allows.
  Guarded(size_t bytes, Poison poison, Place place);
  ~Guarded();
  Guarded(Guarded&& other) noexcept;
  Guarded& operator=(Guarded&& other) noexcept;
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Data and canaries: all that may be read and written.
  std::span<std::byte> accessible() const { return {front_, back_}; }
  // Fills data and canaries with the poison of inputs (dtype sets the pattern of an element).
  void fill_poison(DType dtype);
  // Byte distance from data() of the first canary element that changed; false = none did.
  bool changed_canary(ptrdiff_t* where) const;

 private:
  void release();
  std::byte* block_ = nullptr;  // the mapping, guards included
  size_t block_bytes_ = 0;
  std::byte* front_ = nullptr;  // first accessible byte
  std::byte* back_ = nullptr;   // one past the last accessible byte
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  DType filled_ = DType::none;
};

// Bits of element `index` under the poison of a type: NaN, Inf, -Inf, largest half, by turns.
uint32_t poison_bits(DType dtype, int64_t index);
// The NaN that fills owned outputs: a payload that no computation makes.
uint32_t unwritten_bits(DType dtype);

// A poisoned workspace of exactly `bytes`, 64-byte aligned, between canaries.
class PoisonedWorkspace {
 public:
  explicit PoisonedWorkspace(size_t bytes);
  void* data() const { return memory_.data(); }
  size_t bytes() const { return memory_.bytes(); }
  const Guarded& memory() const { return memory_; }
  // True when a byte before or after it changed.
  bool overrun() const;

 private:
  Guarded memory_;
};

}  // namespace tilewise
