// Softmax of one 64 x block_n score tile in registers, without a row maximum in the common case.
//
//   exact:  p = 2^((s - max) c + lift), c = scale * log2(e)      the first block, and "rescue"
//   usual:  p = 2^(s c - reference), reference = max c - lift    one operation less
//
// The maximum may be stale: it only has to keep every partial sum of p below kCeiling. A warp vote
// checks that; when it fails, the scores are still in registers, so the true maximum is taken and p
// computed again ("rescue"). Floats are free of scale, so the result is the usual online softmax up
// to rounding. docs/forward-sm90.md, "Softmax".
#pragma once

#include "args.h"
#include "kernels/ptx.cuh"
#include "semantics/philox.h"

namespace tilewise::gpu {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;

// fp16 weights overflow at 65504 and lose bits below 2^-14, bf16 weights do neither.
template <Element kElement>
struct Headroom {
  static constexpr float kCeiling = 65536.0f;  // largest partial sum of one thread, row and block
  static constexpr float kLift = 0.0f;         // log2 of p at the maximum
};
template <>
struct Headroom<Element::kFp16> {
  static constexpr float kCeiling = 32768.0f;
  static constexpr float kLift = 6.0f;
};

// The two rows of a thread: row = lane / 4 of its warp's 16, and row + 8.
struct RowState {
  float max[2];        // running maximum of the scores, possibly stale
  float reference[2];  // max * c - lift, or kNoMaximum: the next finite score is rescued
  float sum[2];        // this lane's share of the row sum
};

constexpr float kNoMaximum = -3.4028234663852886e38f;

// From here on the rounding of max * c shows beside that of a 16-bit weight, so such rows are
// always rescued: equal scores get equal weights, however large they are.
constexpr float kFarScore = 4096.0f;

template <Element kElement>
TW_DEVICE void set_maximum(RowState& rows, int row, float maximum, float c) {
  rows.max[row] = maximum;
  const float product = maximum * c;
  const bool is_near = fabsf(product) < kFarScore;
  rows.reference[row] = is_near ? product - Headroom<kElement>::kLift : kNoMaximum;
}

// p = 2^(s c - reference), packed; sum = this lane's part of the row sums.
template <Element kElement, int kCount>
TW_DEVICE void exponentiate(const float (&s)[kCount], Uint32 (&p)[kCount / 2], const RowState& rows,
                            float c, float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const int row = i % 2;
    const float low = exp2_approx(__fmaf_rn(s[2 * i], c, -rows.reference[row]));
    const float high = exp2_approx(__fmaf_rn(s[2 * i + 1], c, -rows.reference[row]));
    sum[row] = i < 2 ? low : sum[row] + low;
    sum[row] += high;
    p[i] = pack<kElement>(low, high);
  }
}

// The same from the true maximum; the largest weight is exactly 2^lift.
template <Element kElement, int kCount>
TW_DEVICE void exponentiate_exactly(const float (&s)[kCount], Uint32 (&p)[kCount / 2],
                                    const RowState& rows, float c, float (&sum)[2]) {
  constexpr float kLift = Headroom<kElement>::kLift;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const int row = i % 2;
    const float low = exp2_approx(__fmaf_rn(s[2 * i] - rows.max[row], c, kLift));
    const float high = exp2_approx(__fmaf_rn(s[2 * i + 1] - rows.max[row], c, kLift));
    sum[row] = i < 2 ? low : sum[row] + low;
    sum[row] += high;
    p[i] = pack<kElement>(low, high);
  }
}

template <Element kElement>
TW_DEVICE bool too_large(const float (&sum)[2]) {
  constexpr float kCeiling = Headroom<kElement>::kCeiling;
  return !(sum[0] <= kCeiling) || !(sum[1] <= kCeiling);  // NaN counts as too large
}

// The largest of `maximum` and a row of the tile, of which four lanes hold a share each.
template <int kCount>
TW_DEVICE float row_maximum(const float (&s)[kCount], int row, float maximum) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    maximum = fmaxf(maximum, fmaxf(s[4 * i + 2 * row], s[4 * i + 2 * row + 1]));
  }
  maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
  return fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
}

// Raises the maximum of a row to that of the tile; returns what older sums must be multiplied by.
template <Element kElement, int kCount>
TW_DEVICE float raise_maximum(const float (&s)[kCount], RowState& rows, int row, float c) {
  const float maximum = row_maximum(s, row, rows.max[row]);
  const float factor = exp2_approx((rows.max[row] - maximum) * c);
  set_maximum<kElement>(rows, row, maximum, c);
  return factor;
}

// The whole row sum, from the four lanes that share the row.
TW_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// cap * tanh(y) of one score. Small y: an odd polynomial, whose terms come multiplied by cap.
// Otherwise cap - 2 cap / (1 + 2^(2 y log2(e))), which is off by cap * 2^-22: nothing beside a
// score of that size, too much beside a small one. tanh.approx is off by cap * 2^-11.
TW_DEVICE float capped_small(float y, const SoftcapTerms& terms) {
  const float square = y * y;
  float sum = __fmaf_rn(square, terms.term[4], terms.term[3]);
  sum = __fmaf_rn(square, sum, terms.term[2]);
  sum = __fmaf_rn(square, sum, terms.term[1]);
  return y * __fmaf_rn(square, sum, terms.term[0]);
}
TW_DEVICE float capped(float y, const SoftcapTerms& terms) {
  const float e = exp2_approx(y * (2.0f * kLog2E));
  const float large = __fmaf_rn(-2.0f * terms.cap, reciprocal_approx(1.0f + e), terms.cap);
  return fabsf(y) <= kSmallSoftcap ? capped_small(y, terms) : large;
}

// s = cap * tanh(s * score_scale). Special functions are the scarce unit and most scores are small,
// so a warp whose scores all are takes the polynomial alone; a score gets the same bits either way.
template <int kCount>
TW_DEVICE void cap_scores(float (&s)[kCount], float score_scale, const SoftcapTerms& terms) {
  float largest[4] = {};  // four chains: one would wait for each of its steps
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    s[i] *= score_scale;
    largest[i % 4] = fmaxf(largest[i % 4], fabsf(s[i]));
  }
  const float most = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
  if (__any_sync(kAllLanes, most > kSmallSoftcap)) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = capped(s[i], terms);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = capped_small(s[i], terms);
  }
}

// Whether softcap may take exponentiate_tiny for all scores of the warp. Not for NaN.
template <int kCount>
TW_DEVICE bool all_tiny(const float (&s)[kCount], const SoftcapTerms& terms) {
  Uint32 largest[2] = {};  // bits of floats that are not negative: ordered as they are
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float low = fmaxf(fabsf(s[i]), fabsf(s[i + 1]));
    const float high = fmaxf(fabsf(s[i + 2]), fabsf(s[i + 3]));
    Uint32& most = largest[i / 4 % 2];
    most = __vimax3_u32(most, __float_as_uint(low), __float_as_uint(high));
  }
  const float most = __uint_as_float(largest[0] > largest[1] ? largest[0] : largest[1]);
  return !__any_sync(kAllLanes, !(most * most <= terms.tiny_limit));
}

// exponentiate() of tiny scores before their scale and softcap, which cost three operations more.
template <Element kElement, int kCount>
TW_DEVICE void exponentiate_tiny(const float (&s)[kCount], Uint32 (&p)[kCount / 2],
                                 const RowState& rows, const SoftcapTerms& terms, float (&sum)[2]) {
  const auto weight = [&](float score, float reference) {
    const float square = score * score;
    const float slope = __fmaf_rn(square, terms.tiny[2], terms.tiny[1]);
    return exp2_approx(__fmaf_rn(score, __fmaf_rn(square, slope, terms.tiny[0]), -reference));
  };
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const int row = i % 2;
    const float low = weight(s[2 * i], rows.reference[row]);
    const float high = weight(s[2 * i + 1], rows.reference[row]);
    sum[row] = i < 2 ? low : sum[row] + low;
    sum[row] += high;
    p[i] = pack<kElement>(low, high);
  }
}

// s = s * score_scale - slope * |distance|; `distance` is that of the thread's first row and first
// column of the tile, and falls by one for each column to the right.
template <int kCount>
TW_DEVICE void add_alibi(float (&s)[kCount], float score_scale, float slope, float distance) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float step = static_cast<float>(8 * ((i / 2) % 2) - 8 * (i / 4) - i % 2);
    s[i] = __fmaf_rn(s[i], score_scale, -slope * fabsf(distance + step));
  }
}

// Which of a thread's weights dropout keeps: bits 2 i and 2 i + 1 for pair i, at row + 8 (i % 2)
// and key + 8 (i / 2). Two of the four words of a Philox call belong to this lane. A loop, because
// Philox unrolled for a whole tile takes ptxas seconds and registers.
template <int kPairs>
TW_DEVICE Uint32 kept_bits(const semantics::Dropout& dropout, int head, int row, int key) {
  static_assert(kPairs <= 16);
  const bool second = (key & 2) != 0;
  Uint32 bits = 0;
#pragma unroll 4
  for (int i = 0; i < kPairs; ++i) {
    const semantics::PhiloxWords words = semantics::philox4x32_10(
        (key + 8 * (i / 2)) >> 2, row + 8 * (i % 2), head, dropout.offset, dropout.seed);
    const Uint32 low = (second ? words.word[2] : words.word[0]) >= dropout.threshold;
    const Uint32 high = (second ? words.word[3] : words.word[1]) >= dropout.threshold;
    bits |= (low | high << 1) << (2 * i);
  }
  return bits;
}

// Clears the dropped weights of a packed tile. `row` and `key` are those of the thread's first
// element.
template <int kCount>
TW_DEVICE void drop_weights(Uint32 (&p)[kCount], const semantics::Dropout& dropout, int head,
                            int row, int key) {
  constexpr int kPairs = kCount < 16 ? kCount : 16;
#pragma unroll
  for (int begin = 0; begin < kCount; begin += kPairs) {
    const Uint32 bits = kept_bits<kPairs>(dropout, head, row, key + 4 * begin);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      p[begin + i] &=
          (bits >> (2 * i) & 1 ? 0x0000ffffu : 0u) | (bits >> (2 * i + 1) & 1 ? 0xffff0000u : 0u);
    }
  }
}

}  // namespace tilewise::gpu
