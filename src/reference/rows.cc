// Loading heads as float64, and one row of softmax(scores) v with nothing clever about it.
#include "reference/rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "reference/element.h"

namespace tilewise::reference {

namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Weights below this do not count for G.
constexpr double kLogOfNothing = -28.0;  // about 2^-40
}  // namespace

std::vector<Sequence> sequences_of(const Problem& problem, const Tensors& tensors) {
  std::vector<Sequence> sequences;
  for (int64_t b = 0; b < problem.batch; ++b) {
    if (!problem.packed) {
      sequences.push_back({0, problem.q_len, 0, problem.kv_len});
      continue;
    }
    const auto at = [&](const Tensor& offsets, int64_t i) {
      return static_cast<int64_t>(read_element(offsets.data, DType::i32, i));
    };
    const int64_t q_begin = at(tensors.cu_seqlens_q, b);
    const int64_t kv_begin = at(tensors.cu_seqlens_kv, b);
    sequences.push_back({q_begin, at(tensors.cu_seqlens_q, b + 1) - q_begin, kv_begin,
                         at(tensors.cu_seqlens_kv, b + 1) - kv_begin});
  }
  return sequences;
}

std::vector<Position> positions_of(const std::vector<Sequence>& sequences, bool keys, bool all,
                                   const std::vector<int64_t>& chosen) {
  std::vector<Position> positions;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t len = keys ? sequences[s].kv_len : sequences[s].q_len;
    const int64_t begin = keys ? sequences[s].kv_begin : sequences[s].q_begin;
    const auto add = [&](int64_t i) {
      positions.push_back({static_cast<int64_t>(s), i, begin + i});
    };
    for (int64_t i = 0; all && i < len; ++i) add(i);
    for (size_t c = 0; !all && c < chosen.size(); ++c) {
      if (chosen[c] < len) add(chosen[c]);
    }
  }
  return positions;
}

Matrix Matrix::transposed() const {
  Matrix result(cols, rows);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) result.row(j)[i] = row(i)[j];
  }
  return result;
}

Matrix load_matrix(const Problem& problem, const Tensor& tensor, const HeadRows& which) {
  const size_t row_dim = problem.packed ? 0 : 1;
  const size_t head_dim = row_dim + 1;
  Matrix matrix(which.len, tensor.size[head_dim + 1]);
  // An index of 0 makes the stride of a size-1 dimension irrelevant.
  const int64_t first = which.head * tensor.stride[head_dim] +
                        (problem.packed ? 0 : which.sequence * tensor.stride[0]);
  for (int64_t i = 0; i < which.len; ++i) {
    const int64_t offset = first + (which.begin + i) * tensor.stride[row_dim];
    for (int64_t d = 0; d < matrix.cols; ++d) {
      matrix.row(i)[d] = read_element(tensor.data, tensor.dtype, offset + d);
    }
  }
  return matrix;
}

std::vector<double> load_vector(const Problem& problem, const Tensor& tensor, const HeadRows& which,
                                double missing) {
  std::vector<double> result(static_cast<size_t>(which.len), missing);
  if (!tensor.given()) return result;
  const size_t head_dim = problem.packed ? 0 : 1;
  // The innermost stride is 1, or does not matter.
  const int64_t first = which.head * tensor.stride[head_dim] + which.begin +
                        (problem.packed ? 0 : which.sequence * tensor.stride[0]);
  for (int64_t i = 0; i < which.len; ++i) {
    result[static_cast<size_t>(i)] = read_element(tensor.data, tensor.dtype, first + i);
  }
  return result;
}

HeadRule rule_of(const Problem& problem, const Tensors& tensors, const Sequence& sequence,
                 int64_t sequence_index, int64_t head) {
  HeadRule rule;
  rule.band = semantics::make_band(problem.mask_rule(), sequence.q_len, sequence.kv_len);
  rule.dropout = problem.dropout();
  rule.dropout_head = static_cast<uint64_t>(sequence_index * problem.q_heads + head);
  rule.keep_scale = 1.0 / (1.0 - problem.options.dropout);
  rule.weight_floor = problem.dtype == DType::f16 ? kHalfWeightFloor : 0;
  rule.scale = problem.scale;
  rule.softcap = problem.options.softcap;
  const Tensor& slopes = tensors.alibi_slopes;
  if (slopes.given()) {
    const int64_t index = slopes.ndim == 2 ? sequence_index * slopes.stride[0] + head : head;
    rule.slope = read_element(slopes.data, slopes.dtype, index);
  }
  rule.sink = tensors.sink.given() ? read_element(tensors.sink.data, DType::f32, head) : -kInfinity;
  rule.score_unit =
      static_cast<double>(problem.head_dim) + std::log2(static_cast<double>(sequence.kv_len) + 1.0);
  return rule;
}

Score finish_score(const HeadRule& rule, double dot, double abs_dot, int64_t i, int64_t j) {
  Score score{rule.scale * dot, 1.0, rule.scale * abs_dot, 0.0};
  if (rule.softcap > 0) {
    const double tanh = std::tanh(score.value / rule.softcap);
    score.value = rule.softcap * tanh;
    score.slope = 1.0 - tanh * tanh;
    score.curvature = 2.0 * std::fabs(tanh) * score.slope / rule.softcap;
  }
  if (rule.slope != 0) {
    const double bias = rule.slope * static_cast<double>(rule.band.distance(i, j));
    score.value -= bias;
    score.magnitude += std::fabs(bias);
  }
  return score;
}

void dot_columns(const double* x, const Matrix& matrix, const semantics::KeyRange& columns,
                 Products& products) {
  const int64_t count = columns.count();
  products.dots.assign(static_cast<size_t>(count), 0.0);
  products.abs_dots.assign(static_cast<size_t>(count), 0.0);
  double* const dots = products.dots.data();
  double* const abs_dots = products.abs_dots.data();
  for (int64_t d = 0; d < matrix.rows; ++d) {
    const double factor = x[d];
    const double* line = matrix.row(d) + columns.begin;
    for (int64_t j = 0; j < count; ++j) {
      const double product = factor * line[j];
      dots[j] += product;
      abs_dots[j] += std::fabs(product);
    }
  }
}

namespace {

void softmax_row(const HeadRule& rule, Row& row) {
  double maximum = rule.sink;
  for (const Score& score : row.scores) {
    if (score.value > maximum) maximum = score.value;
  }
  // Nothing above -inf: exp(score) is then 0, or NaN for a NaN score.
  if (maximum == -kInfinity) maximum = 0;
  const double sink_weight = std::exp(rule.sink - maximum);
  double sum = sink_weight;
  for (size_t j = 0; j < row.scores.size(); ++j) {
    row.p[j] = std::exp(row.scores[j].value - maximum);
    sum += row.p[j];
  }
  row.lse = sum == 0 ? -kInfinity : maximum + std::log(sum);
  row.p_sink = sum == 0 ? 0 : sink_weight / sum;
  for (double& p : row.p) p = sum == 0 ? 0 : p / sum;
  // Weights far below the largest one cannot move a result, however wrong they are. The sink does
  // not count here: it may take nearly all the weight, and out is then small but still a sum.
  double highest = -kInfinity;
  for (const Score& score : row.scores) {
    if (score.value > highest) highest = score.value;
  }
  double largest = 1.0;
  for (const Score& score : row.scores) {
    const double error = kScoreRoundings * 0x1p-24 * rule.score_unit * score.magnitude;
    if (score.value - highest + error > kLogOfNothing) largest = std::max(largest, score.magnitude);
  }
  row.amplification = rule.score_unit * largest;
}

}  // namespace

void attend_row(const HeadRule& rule, const double* query, const Matrix& keys_t,
                const Matrix& values, int64_t i, Row& row) {
  row.index = i;
  row.range = rule.band.keys_of_row(i);
  const auto count = static_cast<size_t>(row.range.count());
  row.scores.resize(count);
  row.p.resize(count);
  dot_columns(query, keys_t, row.range, row.products);
  for (size_t j = 0; j < count; ++j) {
    row.scores[j] = finish_score(rule, row.products.dots[j], row.products.abs_dots[j], i,
                                 row.range.begin + static_cast<int64_t>(j));
  }
  softmax_row(rule, row);
  const auto value_dim = static_cast<size_t>(values.cols);
  row.out.assign(value_dim, 0.0);
  row.out_magnitude.assign(value_dim, 0.0);
  double floor = 0;
  for (const double p : row.p) floor = std::max(floor, p * rule.weight_floor);
  for (size_t j = 0; j < count; ++j) {
    const int64_t key = row.range.begin + static_cast<int64_t>(j);
    const double kept = rule.kept(i, key);
    const double weight = row.p[j] * kept;
    const double magnitude = std::max(row.p[j], floor) * kept;
    const double* value = values.row(key);
    for (size_t d = 0; d < value_dim; ++d) {
      row.out[d] += weight * value[d];
      row.out_magnitude[d] += magnitude * std::fabs(value[d]);
    }
  }
}

void for_each_task(int64_t count, double work, const std::function<void(int64_t)>& body) {
  constexpr double kWorthThreads = 4e6;
  const auto cores = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  const int64_t workers = work < kWorthThreads ? 1 : std::min(cores, count);
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work_on = [&] {
    try {
      for (int64_t task = next++; task < count; task = next++) body(task);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int64_t w = 1; w < workers; ++w) threads.emplace_back(work_on);
  work_on();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tilewise::reference
