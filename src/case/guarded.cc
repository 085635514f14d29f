// Guarded memory by mmap: an unreadable page at both ends, poison in between.
#include "case/guarded.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <new>
#include <utility>

namespace tilewise {

namespace {

constexpr size_t kPatternBytes = 16;
using Pattern = std::array<uint8_t, kPatternBytes>;

// NaN, Inf, -Inf, 65504 by turns, so that a stray read shows whatever it lands on.
constexpr uint32_t kPoisonF32[] = {0x7FD0ABCD, 0x7F800000, 0xFF800000, 0x477FE000};
constexpr uint32_t kPoisonBf16[] = {0x7FDA, 0x7F80, 0xFF80, 0x4780};
constexpr uint32_t kPoisonF16[] = {0x7EDA, 0x7C00, 0xFC00, 0x7BFF};
constexpr uint32_t kPoisonI32[] = {0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, 0x00010001};

Pattern pattern_of(DType dtype) {
  Pattern pattern;
  const auto bytes = static_cast<size_t>(size_of(dtype));
  for (size_t i = 0; i < kPatternBytes / bytes; ++i) {
    const uint32_t bits = poison_bits(dtype, static_cast<int64_t>(i));
    for (size_t byte = 0; byte < bytes; ++byte) {  // little endian, as the tensors are
      pattern[i * bytes + byte] = static_cast<uint8_t>(bits >> (8 * byte));
    }
  }
  return pattern;
}

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Position in the pattern of the byte at `at`, which repeats from `data` on in both directions.
size_t phase(const std::byte* at, const std::byte* data) {
  return (static_cast<size_t>(at - data) % kPatternBytes + kPatternBytes) % kPatternBytes;
}

}  // namespace

uint32_t poison_bits(DType dtype, int64_t index) {
  const auto turn = static_cast<size_t>(index) % 4;
  switch (dtype) {
    case DType::bf16:
      return kPoisonBf16[turn];
    case DType::f16:
      return kPoisonF16[turn];
    case DType::i32:
      return kPoisonI32[turn];
    default:
      return kPoisonF32[turn];
  }
}

uint32_t unwritten_bits(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x7FE5;
    case DType::f16:
      return 0x7EE5;
    default:
      return 0x7FE5C3E1;
  }
}

Guarded::Guarded(size_t bytes, Poison poison, Place place) : bytes_(bytes) {
  constexpr size_t kAlignment = 64;
  if (poison == Poison::off) {
    data_ = static_cast<std::byte*>(
        ::operator new (bytes > 0 ? bytes : 1, std::align_val_t{kAlignment}));
    front_ = data_;
    back_ = data_ + bytes;
    return;
  }
  const size_t page = page_bytes();
  const size_t data_bytes = (bytes + page - 1) / page * page;
  const bool flush = place == Place::flush_with_end;
  block_bytes_ = data_bytes + (flush ? 3 : 4) * page;
  void* const block = mmap(nullptr, block_bytes_, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (block == MAP_FAILED) throw Error(Status::out_of_memory, "case: no memory for a tensor");
  block_ = static_cast<std::byte*>(block);
  front_ = block_ + page;
  back_ = block_ + block_bytes_ - page;
  mprotect(block_, page, PROT_NONE);
  mprotect(back_, page, PROT_NONE);
  data_ = flush ? back_ - bytes : front_ + page;
}

Guarded::~Guarded() { release(); }

Guarded::Guarded(Guarded&& other) noexcept { *this = std::move(other); }

Guarded& Guarded::operator=(Guarded&& other) noexcept {
  if (this == &other) return *this;
  release();
  block_ = std::exchange(other.block_, nullptr);
  block_bytes_ = std::exchange(other.block_bytes_, 0);
  front_ = std::exchange(other.front_, nullptr);
  back_ = std::exchange(other.back_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  filled_ = std::exchange(other.filled_, DType::none);
  return *this;
}

void Guarded::release() {
  if (block_ != nullptr) {
    munmap(block_, block_bytes_);
  } else if (data_ != nullptr) {
    ::operator delete (data_, std::align_val_t{64});
  }
}

void Guarded::fill_poison(DType dtype) {
  const Pattern pattern = pattern_of(dtype);
  std::byte* at = front_;
  for (; at < back_ && phase(at, data_) != 0; ++at) {
    *at = static_cast<std::byte>(pattern[phase(at, data_)]);
  }
  for (; back_ - at >= static_cast<ptrdiff_t>(kPatternBytes); at += kPatternBytes) {
    std::memcpy(at, pattern.data(), kPatternBytes);
  }
  for (; at < back_; ++at) *at = static_cast<std::byte>(pattern[phase(at, data_)]);
  filled_ = dtype;
}

bool Guarded::changed_canary(ptrdiff_t* where) const {
  if (filled_ == DType::none) return false;
  const Pattern pattern = pattern_of(filled_);
  const std::byte* at = front_;
  while (at < back_) {
    if (at == data_) {
      at += bytes_;
      if (at >= back_) break;
    }
    if (*at != static_cast<std::byte>(pattern[phase(at, data_)])) {
      const auto element = static_cast<ptrdiff_t>(size_of(filled_));
      *where = at - data_ - static_cast<ptrdiff_t>(phase(at, data_)) % element;
      return true;
    }
    ++at;
  }
  return false;
}

PoisonedWorkspace::PoisonedWorkspace(size_t bytes)
    : memory_(bytes, Poison::on, Guarded::Place::between_canaries) {
  memory_.fill_poison(DType::f32);
}

bool PoisonedWorkspace::overrun() const {
  ptrdiff_t where = 0;
  return memory_.changed_canary(&where);
}

}  // namespace tilewise
