// Dropout factors of a panel: Philox4x32-10, bit for bit semantics/philox.h, for a vector of rows
// at a time. A counter gives the words of four keys.
#pragma once

#include "cpu/softmax_tile.h"

namespace tilewise::cpu {

// The counters of a vector of rows become their words.
template <class S>
TW_INLINE void philox_of_lanes(uint64_t seed, typename S::Words (&counter)[4]) {
  using Words = typename S::Words;
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    Words high0;
    Words high1;
    const Words low0 = S::multiply_wide(counter[0], 0xD2511F53u, high0);
    const Words low1 = S::multiply_wide(counter[2], 0xCD9E8D57u, high1);
    counter[0] = high1 ^ counter[1] ^ key0;
    counter[2] = high0 ^ counter[3] ^ key1;
    counter[1] = low1;
    counter[3] = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// keep [keys, width] of a panel: 0 or 1 / (1 - p).
template <class S>
void fill_keep(const Settings& settings, const Tile& tile, const PanelKeys& keys, int panel,
               float* keep) {
  using Words = typename S::Words;
  const semantics::Dropout& dropout = settings.dropout;
  uint32_t rows[kWidth<S>];
  uint32_t heads[kWidth<S>];
  for (int lane = 0; lane < kWidth<S>; ++lane) {
    const GroupLane own = lane_of(tile, panel * kWidth<S> + lane);
    rows[lane] = static_cast<uint32_t>(tile.first_row + own.row);
    heads[lane] = static_cast<uint32_t>(tile.dropout_head + static_cast<uint64_t>(own.head));
  }
  uint32_t scale = 0;
  __builtin_memcpy(&scale, &dropout.keep_scale, sizeof scale);
  for (int64_t j = keys.begin; j < keys.end; j = (j / 4 + 1) * 4) {
    const int64_t end = (j / 4 + 1) * 4 < keys.end ? (j / 4 + 1) * 4 : keys.end;
    for (int lane = 0; lane < kWidth<S>; lane += S::kLanes) {
      Words counter[4] = {Words{} + static_cast<uint32_t>(j >> 2), Words{}, Words{},
                          Words{} + dropout.offset};
      __builtin_memcpy(&counter[1], rows + lane, sizeof(Words));
      __builtin_memcpy(&counter[2], heads + lane, sizeof(Words));
      philox_of_lanes<S>(dropout.seed, counter);
      TW_UNROLL for (int i = 0; i < 4; ++i) {
        const int64_t key = j / 4 * 4 + i;
        const Words kept =
            reinterpret_cast<Words>(counter[i] >= (Words{} + dropout.threshold)) & scale;
        if (key >= j && key < end) {
          __builtin_memcpy(keep + (key - keys.begin) * kWidth<S> + lane, &kept, sizeof kept);
        }
      }
    }
  }
}

}  // namespace tilewise::cpu
