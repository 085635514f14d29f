// Waves of heads, and where their copies lie; see key_copies.h.
#include "cpu/key_copies.h"

#include <algorithm>

namespace tilewise::cpu {

KeyCopies::KeyCopies(const Problem& problem, const Settings& settings, int64_t wave_heads)
    : problem_(problem),
      settings_(settings),
      most_blocks_(blocks_of(problem.kv_len)),
      chunks_((most_blocks_ + kChunkBlocks - 1) / kChunkBlocks) {
  const int64_t all =
      problem.packed ? blocks_of(problem.total_kv) + problem.batch : most_blocks_ * problem.batch;
  most_floats_ = std::min(all * problem.kv_heads, most_blocks_ * std::max<int64_t>(1, wave_heads)) *
                 block_floats();
}

// Blocks of all heads before this one. A packed sequence starts at the block that its first row
// would be in, and one further for each sequence before it, whose last block may be part empty.
int64_t KeyCopies::first_block(const Addresses& addresses, int64_t head) const {
  const int64_t index = head / problem_.kv_heads;
  const int64_t rest = head % problem_.kv_heads;
  if (!problem_.packed) return head * most_blocks_;
  const Sequence sequence = addresses.sequence(index);
  return (sequence.kv_begin / settings_.block_keys + index) * problem_.kv_heads +
         rest * blocks_of(sequence.band.kv_len);
}

Wave KeyCopies::wave_from(const Addresses& addresses, int64_t begin) const {
  Wave wave = {begin, begin};
  if (begin == heads()) return wave;
  const int64_t most = most_floats_ / block_floats();
  const int64_t first = first_block(addresses, begin);
  while (wave.end < heads()) {
    const int64_t kv_len = addresses.sequence(wave.end / problem_.kv_heads).band.kv_len;
    if (first_block(addresses, wave.end) + blocks_of(kv_len) - first > most) break;
    ++wave.end;
  }
  return wave;
}

KeyCopies::Place KeyCopies::place(const Addresses& addresses, const Wave& wave, int64_t head,
                                  float* memory) const {
  const int64_t before = first_block(addresses, head) - first_block(addresses, wave.begin);
  const int64_t kv_len = addresses.sequence(head / problem_.kv_heads).band.kv_len;
  float* const keys = memory + before * block_floats();
  if (!settings_.copy_keys) return {nullptr, keys};
  return {keys, keys + blocks_of(kv_len) * settings_.block_keys * settings_.key_row};
}

void KeyCopies::copy(const Tensors& tensors, const Addresses& addresses, const Wave& wave,
                     int64_t task, float* memory, CopyKeys* copy_keys) const {
  const int64_t head = wave.begin + task / chunks_;
  const Sequence sequence = addresses.sequence(head / problem_.kv_heads);
  if (sequence.band.q_len == 0) return;
  const semantics::KeyRange seen = sequence.band.keys_of_rows(0, sequence.band.q_len);
  const int64_t keys = kChunkBlocks * settings_.block_keys;
  const int64_t first = seen.begin / settings_.block_keys * settings_.block_keys;
  KeysToCopy chunk;
  chunk.begin = first + task % chunks_ * keys;
  chunk.end = std::min<int64_t>(chunk.begin + keys, seen.end);
  if (chunk.begin >= chunk.end) return;
  const Place to = place(addresses, wave, head, memory);
  chunk.k = addresses.kv_rows(tensors.k, sequence, head % problem_.kv_heads, 0);
  chunk.v = addresses.kv_rows(tensors.v, sequence, head % problem_.kv_heads, 0);
  chunk.keys = to.keys;
  chunk.values = to.values;
  copy_keys(settings_, chunk);
}

}  // namespace tilewise::cpu
