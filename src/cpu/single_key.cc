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

}  // namespace

void single_key_forward(const Problem& problem, const Tensors& tensors, const Addresses& addresses,
                        const SinglePair& pair) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  const double score = score_of(problem, addresses, tensors, pair).value;
  const int64_t kv_head = pair.head / (problem.q_heads / problem.kv_heads);
  const Rows v = addresses.kv_rows(tensors.v, pair.sequence, kv_head, pair.key);
  const OutputRows out = addresses.q_output(tensors.out, pair.sequence, pair.head, pair.row);
  const semantics::Dropout dropout = problem.dropout();
  float factor = 1;
  if (dropout.active()) {
    const auto head = static_cast<uint64_t>(pair.sequence.index * problem.q_heads + pair.head);
    factor = dropout.keeps(head, pair.row, pair.key) ? dropout.keep_scale : 0.0f;
  }
  // An infinite q or k: +inf - +inf is NaN; -inf is a masked key.
  if (!std::isfinite(score)) factor = std::numeric_limits<float>::quiet_NaN();
  if (score == kNothing) factor = 0;
  for (int64_t d = 0; d < problem.value_dim; ++d) {
    const float value = load_element(v.data, problem.dtype, d);
    store_element(out.data, problem.dtype, d, factor == 1 ? value : factor * value);
  }
  float* const lse = addresses.statistic(tensors.lse, pair.sequence, pair.head, pair.row);
  if (lse == nullptr) return;
  *lse = static_cast<float>(std::isfinite(score) || score == kNothing ? score : std::nan(""));
}

}  // namespace tilewise::cpu
