// The parts of the reference: sequences, float64 copies of one head, and one row of attention.
// Internal to src/reference.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "problem.h"
#include "reference/reference.h"
#include "semantics/mask.h"
#include "semantics/philox.h"

namespace tilewise::reference {

// The constants in which reference.h's `high` counts one rounding of a score (docs/numerics.md):
// weights that stay below 2^-40 even if their score is off by this much do not count for G.
constexpr double kScoreRoundings = 4.0;

// fp16 weights lose bits below 2^-14. Kernels that store them so lift them by at least 2^6, so a
// weight is wrong by 2^-31 of the largest, which is the roundoff 2^-11 of this share of it.
constexpr double kHalfWeightFloor = 0x1p-20;

struct Sequence {
  int64_t q_begin = 0;  // first row in a packed tensor; 0 for dense
  int64_t q_len = 0;
  int64_t kv_begin = 0;
  int64_t kv_len = 0;
};
std::vector<Sequence> sequences_of(const Problem& problem, const Tensors& tensors);

// The positions of a selection over all sequences, in order.
std::vector<Position> positions_of(const std::vector<Sequence>& sequences, bool keys, bool all,
                                   const std::vector<int64_t>& chosen);

// A float64 matrix, row-major.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> data;

  Matrix() = default;
  Matrix(int64_t row_count, int64_t col_count)
      : rows(row_count), cols(col_count), data(static_cast<size_t>(row_count * col_count)) {}
  double* row(int64_t i) { return data.data() + i * cols; }
  const double* row(int64_t i) const { return data.data() + i * cols; }
  Matrix transposed() const;
};

// Rows [0, len) of one head: of sequence s in [b, s, h, d], or from row `begin` in [total, h, d].
struct HeadRows {
  int64_t sequence = 0;
  int64_t begin = 0;
  int64_t len = 0;
  int64_t head = 0;
};
Matrix load_matrix(const Problem& problem, const Tensor& tensor, const HeadRows& which);
// The same rows of a [b, h, s] or [h, total] tensor; `missing` where it is not given.
std::vector<double> load_vector(const Problem& problem, const Tensor& tensor, const HeadRows& which,
                                double missing);

// Everything about one query head that does not depend on the row.
struct HeadRule {
  semantics::Band band;
  semantics::Dropout dropout;
  uint64_t dropout_head = 0;  // batch * q_heads + head
  double keep_scale = 1;      // 1 / (1 - p)
  double scale = 1;
  double softcap = 0;
  double slope = 0;
  double sink = 0;          // -inf = none
  double weight_floor = 0;  // of the largest weight: smaller ones are as wrong as this one
  double score_unit = 0;    // head_dim + log2(kv_len + 1): roundings in one score, per unit of G

  // Weight of pair (i, j) under dropout: 0 or 1 / (1 - p).
  double kept(int64_t i, int64_t j) const {
    if (!dropout.active()) return 1;
    return dropout.keeps(dropout_head, i, j) ? keep_scale : 0;
  }
};
HeadRule rule_of(const Problem& problem, const Tensors& tensors, const Sequence& sequence,
                 int64_t sequence_index, int64_t head);

// A score and what its rounding error grows with.
struct Score {
  double value;      // after scale, softcap and ALiBi
  double slope;      // d value / d (scale q.k): 1 - tanh^2
  double magnitude;  // scale sum_d |q_d k_d| + |ALiBi|
  double curvature;  // 2 |tanh| (1 - tanh^2) / cap: how fast `slope` moves with the score
};
Score finish_score(const HeadRule& rule, double dot, double abs_dot, int64_t i, int64_t j);

// Dot products of one vector with many, and the sums of the absolute products.
struct Products {
  std::vector<double> dots;
  std::vector<double> abs_dots;
};
// With the columns of `matrix`: dots[j] = sum_d x_d matrix[d][begin + j].
void dot_columns(const double* x, const Matrix& matrix, const semantics::KeyRange& columns,
                 Products& products);

// One row of attention.
struct Row {
  int64_t index = 0;
  semantics::KeyRange range{0, 0};
  std::vector<Score> scores;  // of range
  std::vector<double> p;      // of range, before dropout
  double lse = 0;
  double p_sink = 0;         // exp(sink - lse)
  double amplification = 0;  // score_unit * max(1, G): relative error of a weight, in 2^-24
  std::vector<double> out;
  std::vector<double> out_magnitude;  // A_d = sum_j max(p'_j, floor) |v_jd|
  Products products;                  // q.k
};
// keys_t: [head_dim, kv_len]; values: [kv_len, value_dim]. Reuses row's memory.
void attend_row(const HeadRule& rule, const double* query, const Matrix& keys_t,
                const Matrix& values, int64_t i, Row& row);

// Calls body(task) for every task in [0, count), on several threads when `work` (multiplications)
// is large. Tasks must not share what they write. The first exception is thrown again.
void for_each_task(int64_t count, double work, const std::function<void(int64_t)>& body);

}  // namespace tilewise::reference
