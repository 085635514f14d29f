// Float copies of K and V, made once for all query tiles of a head: 16-bit elements become floats,
// rows of interleaved heads come to lie together, and V is cut into the strips that the output
// product walks down. A wave is as many kv heads as the copies' memory holds.
#pragma once

#include <cstdint>

#include "cpu/addresses.h"
#include "cpu/call.h"
#include "problem.h"

namespace tilewise::cpu {

// kv heads [begin, end) of the batch, counted sequence by sequence.
struct Wave {
  int64_t begin = 0;
  int64_t end = 0;
};

class KeyCopies {
 public:
  // `settings`: copy_keys, block_keys, key_row and value_row. A wave has at most `wave_heads` of
  // the longest heads. Does not copy anything.
  KeyCopies(const Problem& problem, const Settings& settings, int64_t wave_heads);

  // Floats that the caller provides.
  int64_t floats() const { return most_floats_; }
  Wave first_wave(const Addresses& addresses) const { return wave_from(addresses, 0); }
  Wave next_wave(const Addresses& addresses, const Wave& wave) const {
    return wave_from(addresses, wave.end);
  }
  int64_t heads() const { return problem_.batch * problem_.kv_heads; }

  // Where a head of the wave has its copies, in `memory` of floats(). keys: null where K is read
  // from where it lies.
  struct Place {
    float* keys;
    float* values;
  };
  Place place(const Addresses& addresses, const Wave& wave, int64_t head, float* memory) const;

  // The tasks that copy a wave.
  int64_t tasks(const Wave& wave) const { return (wave.end - wave.begin) * chunks_; }
  void copy(const Tensors& tensors, const Addresses& addresses, const Wave& wave, int64_t task,
            float* memory, CopyKeys* copy_keys) const;

 private:
  static constexpr int64_t kChunkBlocks = 4;  // of a task

  int64_t blocks_of(int64_t kv_len) const {
    return (kv_len + settings_.block_keys - 1) / settings_.block_keys;
  }
  int64_t block_floats() const {
    return settings_.block_keys *
           ((settings_.copy_keys ? settings_.key_row : 0) + settings_.value_row);
  }
  int64_t first_block(const Addresses& addresses, int64_t head) const;
  Wave wave_from(const Addresses& addresses, int64_t begin) const;

  const Problem& problem_;
  const Settings& settings_;
  int64_t most_blocks_;  // of a head
  int64_t chunks_;       // of a head at most
  int64_t most_floats_;
};

}  // namespace tilewise::cpu
