// Dropout bits: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//
//   key = 64-bit seed, counter = (j / 4, i, batch * q_heads + head, offset), word j % 4
//
// The mask depends on the global (b, h, i, j) only, so CPU, GPU, any tile and any split agree.
// A weight is kept iff its word >= threshold, where threshold = p * 2^32.
#pragma once

#include "semantics/types.h"

namespace tilewise {
namespace semantics {

struct PhiloxWords {
  u32 word[4];
};

TW_FN PhiloxWords philox4x32_10(u32 c0, u32 c1, u32 c2, u32 c3, u64 seed) {
  u32 key0 = static_cast<u32>(seed);
  u32 key1 = static_cast<u32>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64 product0 = static_cast<u64>(0xD2511F53u) * c0;
    const u64 product1 = static_cast<u64>(0xCD9E8D57u) * c2;
    const u32 next0 = static_cast<u32>(product1 >> 32) ^ c1 ^ key0;
    const u32 next2 = static_cast<u32>(product0 >> 32) ^ c3 ^ key1;
    c1 = static_cast<u32>(product1);
    c3 = static_cast<u32>(product0);
    c0 = next0;
    c2 = next2;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return PhiloxWords{{c0, c1, c2, c3}};
}

struct Dropout {
  u64 seed;
  u32 offset;
  u32 threshold;     // 0 = no dropout
  float keep_scale;  // 1 / (1 - p)

  TW_FN bool active() const { return threshold != 0; }
  // head = batch * q_heads + q_head.
  TW_FN bool keeps(u64 head, i64 i, i64 j) const {
    const PhiloxWords words = philox4x32_10(static_cast<u32>(j >> 2), static_cast<u32>(i),
                                            static_cast<u32>(head), offset, seed);
    return words.word[j & 3] >= threshold;
  }
};

TW_FN Dropout make_dropout(double p, u64 seed, u32 offset) {
  Dropout dropout;
  dropout.seed = seed;
  dropout.offset = offset;
  const double scaled = p * 4294967296.0;
  dropout.threshold = scaled >= 4294967295.0 ? 4294967295u : static_cast<u32>(scaled);
  dropout.keep_scale = static_cast<float>(1.0 / (1.0 - p));
  return dropout;
}

}  // namespace semantics
}  // namespace tilewise
