// The online softmax of one 16 x block_n score tile of a warp, with the running maximum:
//
//   m' = max(m, scores)   p = 2^((s - m') c + lift)   l' = l 2^((m - m') c) + sum(p)
//
// O is multiplied by the same 2^((m - m') c). A hidden score is -inf and weighs 0; a tile that is
// hidden from a row leaves its m, l and O as they were. The largest score weighs exactly 2^lift,
// so a row with one key gives that key's value bit for bit.
#pragma once

#include "kernels/softmax_tile.cuh"

namespace tilewise::gpu {

// fp16 weights lose bits below 2^-14, so they are lifted close to the largest fp16.
template <Element kElement>
constexpr float kWeightLift = kElement == Element::kFp16 ? 15.0f : 0.0f;

TW_DEVICE float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

// The two rows of a thread: row = lane / 4 of its warp's 16, and row + 8.
struct OnlineRows {
  float max[2] = {minus_infinity(), minus_infinity()};
  float sum[2] = {0.0f, 0.0f};  // this lane's share
};

// Turns scores into weights; `factor` is what O must be multiplied by.
template <Element kElement, int kCount>
TW_DEVICE void online_softmax(float (&s)[kCount], OnlineRows& rows, float c, float (&factor)[2]) {
  float reference[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float maximum = row_maximum(s, row, rows.max[row]);
    reference[row] = maximum == minus_infinity() ? 0.0f : maximum;  // -inf - -inf is no number
    factor[row] = exp2_approx((rows.max[row] - reference[row]) * c);
    rows.max[row] = maximum;
    rows.sum[row] *= factor[row];
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int row = (i / 2) % 2;
    s[i] = exp2_approx(__fmaf_rn(s[i] - reference[row], c, kWeightLift<kElement>));
    rows.sum[row] += s[i];
  }
}

// Clears the dropped weights; `row` and `key` are those of the thread's first element.
template <int kCount>
TW_DEVICE void drop_scores(float (&p)[kCount], const semantics::Dropout& dropout, int head, int row,
                           int key) {
  constexpr int kPairs = kCount / 2 < 16 ? kCount / 2 : 16;
#pragma unroll
  for (int begin = 0; begin < kCount / 2; begin += kPairs) {
    const Uint32 bits = kept_bits<kPairs>(dropout, head, row, key + 4 * begin);
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      if (!(bits >> i & 1)) p[2 * begin + i] = 0.0f;
    }
  }
}

// What O is multiplied by at the end, and the row's LSE. 0 for a row that has seen nothing.
struct RowResult {
  float scale;
  float lse;
};

// `sink_log2` joins the sum: the sink's logit times log2(e), or -inf.
template <Element kElement>
TW_DEVICE RowResult finish_row(float maximum, float lane_sum, float c, float sink_log2) {
  float factor = exp2_approx(-kWeightLift<kElement>);
  float sum = quad_sum(lane_sum) * factor;
  float top = maximum * c;
  if (sink_log2 > minus_infinity()) {
    const float above = fmaxf(top, sink_log2);
    const float shrink = exp2_approx(top - above);
    sum = sum * shrink + exp2_approx(sink_log2 - above);
    factor *= shrink;
    top = above;
  }
  const float scale = sum == 0.0f ? 0.0f : factor * reciprocal_approx(sum);
  return {scale, (top + log2_approx(sum)) * kLn2};
}

}  // namespace tilewise::gpu
