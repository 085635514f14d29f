// Gradients in float64: first d_q and the sums of every row (lse, delta), row by row; then d_k and
// d_v, key by key, from those sums. Formulas in reference.h, error magnitudes in docs/numerics.md.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/element.h"
#include "reference/rows.h"

namespace tilewise::reference {

namespace {

// What a key needs to know about a row, with the magnitudes of the error of delta.
struct RowSum {
  double lse = 0;
  double delta = 0;
  double delta_low = 0;
  double delta_high = 0;
  double amplification = 0;
};

struct Pair {
  Score score;
  double p;        // weight before dropout
  double kept;     // dropout factor: 0 or 1 / (1 - p)
  double d_p;      // dO.v
  double abs_d_p;  // sum of the absolute products
};

// The gradient of scale q.k, and its magnitudes.
struct ScoreGradient {
  double value;
  double low;
  double high;
};

ScoreGradient score_gradient(const HeadRule& rule, const Pair& pair, const RowSum& sum,
                             int64_t value_dim) {
  const double d_weight = pair.kept * pair.d_p;
  const double d_score = pair.p * (d_weight - sum.delta);
  const double size = std::fabs(d_score);
  const double low = size + pair.p * sum.delta_low;
  const double high = sum.amplification * size +
                      pair.p * (static_cast<double>(value_dim) * pair.kept * pair.abs_d_p +
                                sum.delta_high + std::fabs(d_weight) + std::fabs(sum.delta));
  // The error of 1 - tanh^2: it moves with the score, and the difference cancels.
  const double slope_error =
      rule.softcap > 0
          ? pair.score.curvature * rule.score_unit * pair.score.magnitude + kScoreRoundings
          : 0.0;
  return {d_score * pair.score.slope, low * pair.score.slope,
          high * pair.score.slope + size * slope_error};
}

// values[first + d] += gradient * x[d], magnitudes likewise.
void add_scaled(const ScoreGradient& gradient, const double* x, int64_t count, Values& values,
                size_t first) {
  for (size_t d = 0; d < static_cast<size_t>(count); ++d) {
    const double magnitude = std::fabs(x[d]);
    values.value[first + d] += gradient.value * x[d];
    values.low[first + d] += gradient.low * magnitude;
    values.high[first + d] += gradient.high * magnitude;
  }
}

ScoreGradient scaled(const ScoreGradient& gradient, double factor) {
  return {gradient.value * factor, gradient.low * factor, gradient.high * factor};
}

// delta = sum_j p'_j dO.v_j - dlse. A kernel forms it as dO.out - dlse, with out rounded to its
// dtype and wrong by what forward may be wrong: hence the magnitudes. `tiny`: below it out is
// rounded to a fixed step.
RowSum sum_row(const Row& row, const std::vector<double>& d_weights, const double* d_out,
               double d_lse, double tiny) {
  RowSum sum;
  sum.lse = row.lse;
  sum.amplification = row.amplification;
  for (size_t j = 0; j < row.p.size(); ++j) sum.delta += row.p[j] * d_weights[j];
  sum.delta -= d_lse;
  const auto value_dim = static_cast<double>(row.out.size());
  sum.delta_high = std::fabs(d_lse);
  for (size_t d = 0; d < row.out.size(); ++d) {
    const double size = std::fabs(d_out[d]);
    sum.delta_low += size * (row.out_magnitude[d] + std::max(std::fabs(row.out[d]), tiny));
    sum.delta_high +=
        size * (row.amplification * row.out_magnitude[d] + value_dim * std::fabs(row.out[d]));
  }
  return sum;
}

// Positions are in order of sequence, then index.
int64_t first_of(const std::vector<Position>& positions, int64_t sequence) {
  const auto first =
      std::partition_point(positions.begin(), positions.end(),
                           [&](const Position& position) { return position.sequence < sequence; });
  return first - positions.begin();
}
bool is_at(const std::vector<Position>& positions, int64_t at, int64_t sequence, int64_t index) {
  if (at >= static_cast<int64_t>(positions.size())) return false;
  const Position& position = positions[static_cast<size_t>(at)];
  return position.sequence == sequence && position.index == index;
}

// One query head of one sequence: the operands of its rows.
struct QueryHead {
  HeadRule rule;
  Matrix q;
  Matrix d_out;
  std::vector<double> d_lse;
};

// One key and its value, and where its gradients stand among the selected keys.
struct KeyRow {
  int64_t index = 0;  // in the sequence
  Matrix key;
  Matrix value;
  int64_t at = 0;  // selected key * kv_heads + kv_head
};

class Backward {
 public:
  Backward(const Problem& problem, const Tensors& tensors, const Selection& selection, RowSums sums)
      : problem_(problem),
        tensors_(tensors),
        every_row_(sums == RowSums::computed),
        sequences_(sequences_of(problem, tensors)) {
    result_.rows = positions_of(sequences_, false, selection.all_rows, selection.rows);
    result_.keys = positions_of(sequences_, true, selection.all_keys, selection.keys);
    result_.d_q.resize(count_of(result_.rows) * problem.q_heads * problem.head_dim);
    result_.d_k.resize(count_of(result_.keys) * problem.kv_heads * problem.head_dim);
    result_.d_v.resize(count_of(result_.keys) * problem.kv_heads * problem.value_dim);
    int64_t total = 0;
    for (const Sequence& sequence : sequences_) {
      first_row_.push_back(total);
      total += sequence.q_len;
    }
    sums_.resize(static_cast<size_t>(total * problem.q_heads));
    if (tensors.sink.given() && selection.all_rows) {
      result_.d_sink.resize(problem.q_heads);
      sink_parts_.resize(static_cast<int64_t>(sequences_.size()) * problem.q_heads);
    }
  }

  Gradients64 run();

 private:
  static int64_t count_of(const std::vector<Position>& positions) {
    return static_cast<int64_t>(positions.size());
  }
  // Row sums of one (sequence, head), row by row.
  RowSum* sums_of(int64_t sequence, int64_t head) {
    const Sequence& lengths = sequences_[static_cast<size_t>(sequence)];
    return sums_.data() + first_row_[static_cast<size_t>(sequence)] * problem_.q_heads +
           head * lengths.q_len;
  }
  QueryHead load_query_head(int64_t sequence, int64_t head) const;
  void rows_of_head(int64_t sequence, int64_t head);
  void row_gradient(const QueryHead& head, const Row& row, const RowSum& sum, const Products& d_p,
                    const Matrix& keys, size_t first);
  void given_sums(int64_t sequence, int64_t head);
  void keys_of_head(int64_t sequence, int64_t kv_head);
  void key_gradient(const QueryHead& head, const RowSum* sums, const Matrix& q_t,
                    const Matrix& d_out_t, const KeyRow& key);
  void add_sink_part(size_t at, const Row& row, const RowSum& sum);

  const Problem& problem_;
  const Tensors& tensors_;
  bool every_row_;
  std::vector<Sequence> sequences_;
  std::vector<int64_t> first_row_;  // of each sequence, in all rows
  std::vector<RowSum> sums_;
  Values sink_parts_;  // [sequence, q_heads]
  Gradients64 result_;
};

QueryHead Backward::load_query_head(int64_t sequence, int64_t head) const {
  const Sequence& lengths = sequences_[static_cast<size_t>(sequence)];
  const HeadRows rows{sequence, lengths.q_begin, lengths.q_len, head};
  return {rule_of(problem_, tensors_, lengths, sequence, head),
          load_matrix(problem_, tensors_.q, rows), load_matrix(problem_, tensors_.d_out, rows),
          load_vector(problem_, tensors_.d_lse, rows, 0.0)};
}

void Backward::add_sink_part(size_t at, const Row& row, const RowSum& sum) {
  if (sink_parts_.value.empty() || row.p_sink == 0) return;
  sink_parts_.value[at] -= row.p_sink * sum.delta;
  sink_parts_.low[at] += row.p_sink * sum.delta_low;
  sink_parts_.high[at] += row.p_sink * (sum.delta_high + row.amplification * std::fabs(sum.delta));
}

void Backward::row_gradient(const QueryHead& head, const Row& row, const RowSum& sum,
                            const Products& d_p, const Matrix& keys, size_t first) {
  const int64_t i = row.index;
  for (int64_t j = row.range.begin; j < row.range.end; ++j) {
    const auto n = static_cast<size_t>(j - row.range.begin);
    const Pair pair{row.scores[n], row.p[n], head.rule.kept(i, j), d_p.dots[n], d_p.abs_dots[n]};
    const ScoreGradient gradient = score_gradient(head.rule, pair, sum, problem_.value_dim);
    add_scaled(scaled(gradient, head.rule.scale), keys.row(j), keys.cols, result_.d_q, first);
  }
}

void Backward::rows_of_head(int64_t sequence, int64_t head) {
  const Sequence& lengths = sequences_[static_cast<size_t>(sequence)];
  const int64_t kv_head = head / (problem_.q_heads / problem_.kv_heads);
  const HeadRows kv_rows{sequence, lengths.kv_begin, lengths.kv_len, kv_head};
  const QueryHead query = load_query_head(sequence, head);
  const Matrix keys = load_matrix(problem_, tensors_.k, kv_rows);
  const Matrix keys_t = keys.transposed();
  const Matrix values = load_matrix(problem_, tensors_.v, kv_rows);
  const Matrix values_t = values.transposed();
  const auto sink_at = static_cast<size_t>(sequence * problem_.q_heads + head);
  RowSum* sums = sums_of(sequence, head);
  Row row;
  Products d_p;
  std::vector<double> d_weights;
  int64_t next = first_of(result_.rows, sequence);
  for (int64_t i = 0; i < lengths.q_len; ++i) {
    const bool wanted = is_at(result_.rows, next, sequence, i);
    if (!wanted && !every_row_) continue;
    attend_row(query.rule, query.q.row(i), keys_t, values, i, row);
    const auto count = static_cast<size_t>(row.range.count());
    d_weights.resize(count);
    dot_columns(query.d_out.row(i), values_t, row.range, d_p);
    for (size_t n = 0; n < count; ++n) {
      d_weights[n] = query.rule.kept(i, row.range.begin + static_cast<int64_t>(n)) * d_p.dots[n];
    }
    sums[i] = sum_row(row, d_weights, query.d_out.row(i), query.d_lse[static_cast<size_t>(i)],
                      smallest_normal(problem_.dtype));
    add_sink_part(sink_at, row, sums[i]);
    if (!wanted) continue;
    row_gradient(query, row, sums[i], d_p, keys,
                 static_cast<size_t>((next * problem_.q_heads + head) * problem_.head_dim));
    ++next;
  }
}

// An upper bound of scale sum_d |q_d k_jd| + |ALiBi| over all keys, by Cauchy-Schwarz: the exact
// maximum would cost as much as forward.
double largest_score(const HeadRule& rule, const Matrix& q, int64_t i, double longest_key) {
  double squares = 0;
  for (int64_t d = 0; d < q.cols; ++d) squares += q.row(i)[d] * q.row(i)[d];
  const semantics::KeyRange range = rule.band.keys_of_row(i);
  if (range.empty()) return 0;
  const auto distance =
      std::max(rule.band.distance(i, range.begin), rule.band.distance(i, range.end - 1));
  return rule.scale * std::sqrt(squares) * longest_key +
         std::fabs(rule.slope) * static_cast<double>(distance);
}

std::vector<double> largest_in_columns(const Matrix& matrix) {
  std::vector<double> largest(static_cast<size_t>(matrix.cols));
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t d = 0; d < matrix.cols; ++d) {
      const double size = std::fabs(matrix.row(i)[d]);
      if (std::isfinite(size)) {
        largest[static_cast<size_t>(d)] = std::max(largest[static_cast<size_t>(d)], size);
      }
    }
  }
  return largest;
}

void Backward::given_sums(int64_t sequence, int64_t head) {
  const Sequence& lengths = sequences_[static_cast<size_t>(sequence)];
  const QueryHead query = load_query_head(sequence, head);
  const HeadRows rows{sequence, lengths.q_begin, lengths.q_len, head};
  const Matrix out = load_matrix(problem_, tensors_.out, rows);
  const std::vector<double> lse = load_vector(problem_, tensors_.lse, rows, 0.0);
  const int64_t kv_head = head / (problem_.q_heads / problem_.kv_heads);
  const Matrix keys =
      load_matrix(problem_, tensors_.k, {sequence, lengths.kv_begin, lengths.kv_len, kv_head});
  const std::vector<double> tallest = largest_in_columns(
      load_matrix(problem_, tensors_.v, {sequence, lengths.kv_begin, lengths.kv_len, kv_head}));
  double longest = 0;
  for (int64_t j = 0; j < keys.rows; ++j) {
    double squares = 0;
    for (int64_t d = 0; d < keys.cols; ++d) squares += keys.row(j)[d] * keys.row(j)[d];
    longest = std::max(longest, std::sqrt(squares));
  }
  const double tiny = smallest_normal(problem_.dtype);
  RowSum* sums = sums_of(sequence, head);
  for (int64_t i = 0; i < lengths.q_len; ++i) {
    RowSum& sum = sums[i];
    sum.lse = lse[static_cast<size_t>(i)];
    sum.delta = -query.d_lse[static_cast<size_t>(i)];
    sum.delta_high = std::fabs(sum.delta);
    sum.amplification =
        query.rule.score_unit * std::max(1.0, largest_score(query.rule, query.q, i, longest));
    for (int64_t d = 0; d < out.cols; ++d) {
      const double d_out = query.d_out.row(i)[d];
      const double product = d_out * out.row(i)[d];
      const double tallest_weighed = query.rule.keep_scale * tallest[static_cast<size_t>(d)];
      sum.delta += product;
      // A kernel may also form delta from its own weights: apart from this by the rounding of out
      // and by the error of forward, where A_d is at most the tallest value of the column.
      sum.delta_low += std::max(std::fabs(product), std::fabs(d_out) * tiny);
      sum.delta_high += static_cast<double>(out.cols) * std::fabs(product) +
                        sum.amplification * std::fabs(d_out) * tallest_weighed;
    }
  }
}

void Backward::key_gradient(const QueryHead& head, const RowSum* sums, const Matrix& q_t,
                            const Matrix& d_out_t, const KeyRow& key) {
  const HeadRule& rule = head.rule;
  const semantics::KeyRange every_row{0, head.q.rows};
  Products scores, d_p;
  dot_columns(key.key.row(0), q_t, every_row, scores);
  dot_columns(key.value.row(0), d_out_t, every_row, d_p);
  for (int64_t i = 0; i < head.q.rows; ++i) {
    if (!rule.band.visible(i, key.index)) continue;
    const auto n = static_cast<size_t>(i);
    const Score score = finish_score(rule, scores.dots[n], scores.abs_dots[n], i, key.index);
    // A row whose scores are all -inf has lse -inf and weights 0.
    const bool nothing = std::isinf(sums[i].lse) && sums[i].lse < 0 && !std::isnan(score.value);
    const Pair pair{score, nothing ? 0.0 : std::exp(score.value - sums[i].lse),
                    rule.kept(i, key.index), d_p.dots[n], d_p.abs_dots[n]};
    const ScoreGradient d_score = score_gradient(rule, pair, sums[i], problem_.value_dim);
    add_scaled(scaled(d_score, rule.scale), head.q.row(i), problem_.head_dim, result_.d_k,
               static_cast<size_t>(key.at * problem_.head_dim));
    const double weight = pair.p * pair.kept;
    add_scaled({weight, weight, weight * sums[i].amplification}, head.d_out.row(i),
               problem_.value_dim, result_.d_v, static_cast<size_t>(key.at * problem_.value_dim));
  }
}

void Backward::keys_of_head(int64_t sequence, int64_t kv_head) {
  const Sequence& lengths = sequences_[static_cast<size_t>(sequence)];
  const int64_t first = first_of(result_.keys, sequence);
  const int64_t last = first_of(result_.keys, sequence + 1);
  const int64_t group = problem_.q_heads / problem_.kv_heads;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const QueryHead query = load_query_head(sequence, head);
    const Matrix q_t = query.q.transposed();
    const Matrix d_out_t = query.d_out.transposed();
    for (int64_t r = first; r < last; ++r) {
      const int64_t j = result_.keys[static_cast<size_t>(r)].index;
      const HeadRows one{sequence, lengths.kv_begin + j, 1, kv_head};
      const KeyRow key{j, load_matrix(problem_, tensors_.k, one),
                       load_matrix(problem_, tensors_.v, one), r * problem_.kv_heads + kv_head};
      key_gradient(query, sums_of(sequence, head), q_t, d_out_t, key);
    }
  }
}

Gradients64 Backward::run() {
  const auto sequences = static_cast<int64_t>(sequences_.size());
  const int64_t q_heads = problem_.q_heads;
  const int64_t rows = every_row_ ? problem_.total_q : count_of(result_.rows);
  const double unit =
      static_cast<double>(q_heads) * static_cast<double>(problem_.head_dim + problem_.value_dim);
  for_each_task(sequences * q_heads,
                unit * static_cast<double>(rows) * static_cast<double>(problem_.kv_len),
                [&](int64_t task) { rows_of_head(task / q_heads, task % q_heads); });
  if (!every_row_) {
    for_each_task(sequences * q_heads, unit * static_cast<double>(problem_.total_q),
                  [&](int64_t task) { given_sums(task / q_heads, task % q_heads); });
  }
  for_each_task(
      sequences * problem_.kv_heads,
      unit * static_cast<double>(count_of(result_.keys)) * static_cast<double>(problem_.q_len),
      [&](int64_t task) { keys_of_head(task / problem_.kv_heads, task % problem_.kv_heads); });
  for (size_t part = 0; part < sink_parts_.value.size(); ++part) {
    const size_t head = part % static_cast<size_t>(q_heads);
    result_.d_sink.value[head] += sink_parts_.value[part];
    result_.d_sink.low[head] += sink_parts_.low[part];
    result_.d_sink.high[head] += sink_parts_.high[part];
  }
  return std::move(result_);
}

}  // namespace

Gradients64 backward(const Problem& problem, const Tensors& tensors, const Selection& selection,
                     RowSums sums) {
  return Backward(problem, tensors, selection, sums).run();
}

}  // namespace tilewise::reference
