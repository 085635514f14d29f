// The specification in code: attention and its gradients in float64, straight from the formulas.
//
//   s_ij = cap tanh(scale q_i.k_j / cap) - slope |i + off - j|   over the visible keys of row i
//   p_ij = exp(s_ij - lse_i),  lse_i = log(exp(sink) + sum_j exp(s_ij)),  out_i = sum_j p'_ij v_j
//   dP'_ij = m_ij dO_i.v_j,  delta_i = sum_j p_ij dP'_ij - dlse_i,  dS_ij = p_ij (dP'_ij - delta_i)
//   dQ_i = scale sum_j dS_ij t_ij k_j,  dK_j = scale sum_i dS_ij t_ij q_i,  dV_j = sum_i p'_ij dO_i
//   dSink = -sum_i exp(sink - lse_i) delta_i,  t = 1 - tanh^2,  p' = m p,  m = kept / (1 - dropout)
//
// No tiles, no online softmax, nothing shared with the kernels but semantics/ (mask and Philox).
// With every value come two magnitudes, from which case/tolerance.h makes the bound of its rounding
// error: docs/numerics.md derives them. Results are not rounded to the dtype of the tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::reference {

// One result tensor. An error up to low * u(dtype) + high * 2^-24 (times the constants of
// case/tolerance.h) is what rounding alone explains.
struct Values {
  std::vector<double> value;
  std::vector<double> low;
  std::vector<double> high;

  void resize(int64_t count) {
    value.assign(static_cast<size_t>(count), 0.0);
    low.assign(static_cast<size_t>(count), 0.0);
    high.assign(static_cast<size_t>(count), 0.0);
  }
};

// Which rows (out, lse, d_q) and keys (d_k, d_v) to compute, for every batch entry and head, so
// that a long problem can be checked by sampling. Positions count within a sequence.
struct Selection {
  bool all_rows = true;
  bool all_keys = true;
  std::vector<int64_t> rows;  // ascending
  std::vector<int64_t> keys;  // ascending
};

// A row or key that was computed: its sequence, its position there, its row in a packed tensor.
struct Position {
  int64_t sequence = 0;
  int64_t index = 0;
  int64_t packed_row = 0;
};

struct Result64 {
  std::vector<Position> rows;
  Values out;  // [rows, q_heads, value_dim]
  Values lse;  // [rows, q_heads]
};

struct Gradients64 {
  std::vector<Position> rows;
  std::vector<Position> keys;
  Values d_q;     // [rows, q_heads, head_dim]
  Values d_k;     // [keys, kv_heads, head_dim]
  Values d_v;     // [keys, kv_heads, value_dim]
  Values d_sink;  // [q_heads]; empty when there is no sink or not all rows were computed
};

// Where backward takes lse_i and delta_i from: computed from q, k, v alone, or from the tensors
// out and lse of the call (as kernels do; needed when not all rows are computed).
enum class RowSums { computed, given };

// `problem` says shapes and options (its direction does not matter), `tensors` hold the data.
Result64 forward(const Problem& problem, const Tensors& tensors, const Selection& selection = {});
Gradients64 backward(const Problem& problem, const Tensors& tensors,
                     const Selection& selection = {}, RowSums sums = RowSums::computed);

}  // namespace tilewise::reference
