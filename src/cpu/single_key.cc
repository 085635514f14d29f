// The arithmetic of rows with one key, in double; see single_key.h.
#include "cpu/single_key.h"

#include <cmath>
#include <limits>

#include "element.h"

namespace tilewise::cpu {

namespace {

// The natural score in double: finite q and k cannot overflow it. slope: its derivative by q.k.
struct Score {
  double value;
  double slope;
};

Score score_of(const Problem& problem, const Addresses& addresses, const Tensors& tensors,
               const SinglePair& pair) {
  const int64_t kv_head = pair.head / (problem.q_heads / problem.kv_heads);
  const Rows q = addresses.q_rows(tensors.q, pair.sequence, pair.head, pair.row);
  const Rows k = addresses.kv_rows(tensors.k, pair.sequence, kv_head, pair.key);
  double dot = 0;
  for (int64_t d = 0; d < problem.head_dim; ++d) {
    dot += static_cast<double>(load_element(q.data, problem.dtype, d)) *
           static_cast<double>(load_element(k.data, problem.dtype, d));
  }
  Score score = {problem.scale * dot, problem.scale};
  const double cap = problem.options.softcap;
  if (cap > 0) {
    const double tanh = std::tanh(score.value / cap);
    score = {cap * tanh, problem.scale * (1 - tanh * tanh)};
  }
  if (problem.has(Arg::alibi_slopes)) {
    score.value -= static_cast<double>(addresses.slope(pair.sequence, pair.head)) *
                   static_cast<double>(pair.sequence.band.distance(pair.row, pair.key));
  }
  return score;
}

// The dropout factor of the pair.
float keep_factor(const Problem& problem, const SinglePair& pair) {
  const semantics::Dropout dropout = problem.dropout();
  if (!dropout.active()) return 1;
  const auto head = static_cast<uint64_t>(pair.sequence.index * problem.q_heads + pair.head);
  return dropout.keeps(head, pair.row, pair.key) ? dropout.keep_scale : 0.0f;
}

constexpr double kNothing = -std::numeric_limits<double>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace

void single_key_forward(const Problem& problem, const Tensors& tensors, const Addresses& addresses,
                        const SinglePair& pair) {
  const double score = score_of(problem, addresses, tensors, pair).value;
  const int64_t kv_head = pair.head / (problem.q_heads / problem.kv_heads);
  const Rows v = addresses.kv_rows(tensors.v, pair.sequence, kv_head, pair.key);
  const OutputRows out = addresses.q_output(tensors.out, pair.sequence, pair.head, pair.row);
  float factor = keep_factor(problem, pair);
  // An infinite q or k: +inf - +inf is NaN; -inf is a masked key.
  if (!std::isfinite(score)) factor = kNaN;
  if (score == kNothing) factor = 0;
  for (int64_t d = 0; d < problem.value_dim; ++d) {
    const float value = load_element(v.data, problem.dtype, d);
    store_element(out.data, problem.dtype, d, factor == 1 ? value : factor * value);
  }
  float* const lse = addresses.statistic(tensors.lse, pair.sequence, pair.head, pair.row);
  if (lse == nullptr) return;
  *lse = static_cast<float>(std::isfinite(score) || score == kNothing ? score
                                                                      : static_cast<double>(kNaN));
}

void single_key_backward(const Problem& problem, const Tensors& tensors, const Addresses& addresses,
                         const SinglePair& pair, const SinglePairSums& sums) {
  const Score score = score_of(problem, addresses, tensors, pair);
  if (score.value == kNothing) return;
  const int64_t kv_head = pair.head / (problem.q_heads / problem.kv_heads);
  const Rows q = addresses.q_rows(tensors.q, pair.sequence, pair.head, pair.row);
  const Rows k = addresses.kv_rows(tensors.k, pair.sequence, kv_head, pair.key);
  const Rows v = addresses.kv_rows(tensors.v, pair.sequence, kv_head, pair.key);
  const Rows d_out = addresses.q_rows(tensors.d_out, pair.sequence, pair.head, pair.row);
  const float keep = std::isfinite(score.value) ? keep_factor(problem, pair) : kNaN;
  double d_weight = 0;
  for (int64_t d = 0; d < problem.value_dim; ++d) {
    const float gradient = load_element(d_out.data, problem.dtype, d);
    d_weight +=
        static_cast<double>(gradient) * static_cast<double>(load_element(v.data, problem.dtype, d));
    if (sums.d_v != nullptr) sums.d_v[d] += keep * gradient;
  }
  d_weight *= static_cast<double>(keep);
  const float* const d_lse = addresses.statistic(tensors.d_lse, pair.sequence, pair.head, pair.row);
  // P (dP - delta) with P = 1 and delta = dP - d_lse: NaN stays NaN, all else cancels exactly.
  const double d_score =
      ((d_lse == nullptr ? 0.0 : static_cast<double>(*d_lse)) + (d_weight - d_weight)) *
      score.slope;
  for (int64_t d = 0; d < problem.head_dim; ++d) {
    const auto query = static_cast<double>(load_element(q.data, problem.dtype, d));
    const auto key = static_cast<double>(load_element(k.data, problem.dtype, d));
    if (sums.d_k != nullptr) sums.d_k[d] += static_cast<float>(d_score / problem.scale * query);
    if (sums.d_q != nullptr) sums.d_q[d] += static_cast<float>(d_score * key);
  }
}

}  // namespace tilewise::cpu
