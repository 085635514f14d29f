// How the keys of a batch are cut into tasks; see key_ranges.h.
#include "cpu/key_ranges.h"

#include <algorithm>

namespace tilewise::cpu {

KeyRanges::KeyRanges(const Problem& problem, const Addresses& addresses, int64_t keys,
                     int64_t* table)
    : problem_(problem), addresses_(addresses), keys_(keys), table_(table) {
  int64_t ranges = problem.batch * ranges_of(problem.kv_len);
  if (problem.packed) {
    ranges = 0;
    for (int64_t s = 0; s < problem.batch; ++s) {
      table_[s] = ranges;
      ranges += ranges_of(addresses.sequence(s).band.kv_len);
    }
    table_[problem.batch] = ranges;
  }
  count_ = ranges * problem.kv_heads;
}

KeyTask KeyRanges::task(int64_t index) const {
  int64_t range = index / problem_.kv_heads;
  int64_t sequence = 0;
  if (problem_.packed) {
    sequence = std::upper_bound(table_, table_ + problem_.batch + 1, range) - table_ - 1;
    range -= table_[sequence];
  } else {
    sequence = range / ranges_of(problem_.kv_len);
    range %= ranges_of(problem_.kv_len);
  }
  KeyTask task;
  task.sequence = addresses_.sequence(sequence);
  task.kv_head = index % problem_.kv_heads;
  task.begin = range * keys_;
  task.end = std::min<int64_t>(task.begin + keys_, task.sequence.band.kv_len);
  return task;
}

}  // namespace tilewise::cpu
