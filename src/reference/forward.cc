// Forward in float64: every selected row of every head, one after the other.
#include <algorithm>

#include "reference/rows.h"

namespace tilewise::reference {

namespace {

// Rows of one task: loading a head costs about as much as a few rows.
constexpr int64_t kRowsOfTask = 64;

// [first, last) of `positions` that lie in one sequence.
struct Span {
  int64_t sequence;
  int64_t first;
  int64_t last;
};

std::vector<Span> spans_of(const std::vector<Position>& positions) {
  std::vector<Span> spans;
  const auto count = static_cast<int64_t>(positions.size());
  for (int64_t first = 0; first < count;) {
    int64_t last = first;
    const int64_t sequence = positions[static_cast<size_t>(first)].sequence;
    while (last < count && last - first < kRowsOfTask &&
           positions[static_cast<size_t>(last)].sequence == sequence) {
      ++last;
    }
    spans.push_back({sequence, first, last});
    first = last;
  }
  return spans;
}

void forward_rows(const Problem& problem, const Tensors& tensors, const Sequence& sequence,
                  const Span& span, int64_t head, Result64& result) {
  const int64_t kv_head = head / (problem.q_heads / problem.kv_heads);
  const HeadRows keys{span.sequence, sequence.kv_begin, sequence.kv_len, kv_head};
  const Matrix keys_t = load_matrix(problem, tensors.k, keys).transposed();
  const Matrix values = load_matrix(problem, tensors.v, keys);
  const HeadRule rule = rule_of(problem, tensors, sequence, span.sequence, head);
  Row row;
  for (int64_t r = span.first; r < span.last; ++r) {
    const int64_t i = result.rows[static_cast<size_t>(r)].index;
    const Matrix query =
        load_matrix(problem, tensors.q, {span.sequence, sequence.q_begin + i, 1, head});
    attend_row(rule, query.row(0), keys_t, values, i, row);
    const auto at = static_cast<size_t>(r * problem.q_heads + head);
    result.lse.value[at] = row.lse;
    result.lse.high[at] = row.amplification;
    const size_t first = at * static_cast<size_t>(problem.value_dim);
    for (size_t d = 0; d < static_cast<size_t>(problem.value_dim); ++d) {
      result.out.value[first + d] = row.out[d];
      result.out.low[first + d] = row.out_magnitude[d];
      result.out.high[first + d] = row.amplification * row.out_magnitude[d];
    }
  }
}

}  // namespace

Result64 forward(const Problem& problem, const Tensors& tensors, const Selection& selection) {
  const std::vector<Sequence> sequences = sequences_of(problem, tensors);
  Result64 result;
  result.rows = positions_of(sequences, false, selection.all_rows, selection.rows);
  const auto row_count = static_cast<int64_t>(result.rows.size());
  result.out.resize(row_count * problem.q_heads * problem.value_dim);
  result.lse.resize(row_count * problem.q_heads);
  const std::vector<Span> spans = spans_of(result.rows);
  const double work = static_cast<double>(row_count * problem.q_heads) *
                      static_cast<double>(problem.kv_len) *
                      static_cast<double>(problem.head_dim + problem.value_dim);
  for_each_task(static_cast<int64_t>(spans.size()) * problem.q_heads, work, [&](int64_t task) {
    const Span& span = spans[static_cast<size_t>(task / problem.q_heads)];
    forward_rows(problem, tensors, sequences[static_cast<size_t>(span.sequence)], span,
                 task % problem.q_heads, result);
  });
  return result;
}

}  // namespace tilewise::reference
