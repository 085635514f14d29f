// The tasks of backward: ranges of keys. Order: sequence, range, kv head, so that threads work on
// different heads and rarely wait for each other's d_q; a range comes after all earlier ranges of
// its head.
#pragma once

#include <cstdint>

#include "cpu/addresses.h"

namespace tilewise::cpu {

struct KeyTask {
  Sequence sequence;
  int64_t kv_head = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

class KeyRanges {
 public:
  // table: [batch + 1], for packed batches.
  KeyRanges(const Problem& problem, const Addresses& addresses, int64_t keys, int64_t* table);
  int64_t count() const { return count_; }
  KeyTask task(int64_t index) const;
  // Begin of the range that holds `key`.
  int64_t first_seen(int64_t key) const { return key / keys_ * keys_; }

 private:
  int64_t ranges_of(int64_t kv_len) const { return (kv_len + keys_ - 1) / keys_; }

  const Problem& problem_;
  const Addresses& addresses_;
  int64_t keys_;
  int64_t* table_;  // ranges before each sequence
  int64_t count_ = 0;
};

}  // namespace tilewise::cpu
