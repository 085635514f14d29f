// The passes of the schedules. In short, for N rows and keys, one head, nothing masked:
//
//   standard          q, k, v, out once; the matrix 4 times: write S, read S, write P, read P
//   K and V outside   k, v once; N / tile_keys times read q, read out, write out
//   q outside         q, out once; N / tile_rows times read k, v
//   decode            q, out, k, v once; partial outputs and lse of the parts, written and read
//   backward          standard: P twice, dP twice, dS three times; recompute: k, v, d_k, d_v once,
//                     N / tile_keys times read q, read d_out, read and write d_q
//
// Heads: q, out and their gradients count for each query head. What stands outside a loop over k
// and v, and in decode, reads k and v once for each kv head; the other schedules read them for each
// query head.
#include "cost/traffic.h"

#include <algorithm>
#include <cmath>

#include "cost/tiles.h"

namespace tilewise::cost_model {

namespace {

constexpr double kStatisticBytes = 4;

class TrafficList {
 public:
  TrafficList(const AttentionShape& shape, const ScheduleChoice& choice, const Sums& sums,
              Cost& cost)
      : cost_(cost),
        sums_(sums),
        choice_(choice),
        element_(static_cast<double>(size_of(shape.dtype))),
        sum_(accumulator_bytes(shape, choice.accounting)),
        q_heads_(static_cast<double>(shape.q_heads)),
        kv_heads_(static_cast<double>(shape.kv_heads)),
        d_(static_cast<double>(shape.head_dim)),
        dv_(static_cast<double>(shape.value_dim)) {}

  void standard();
  void keys_outside();
  void queries_outside();
  void decode(int64_t cores);
  void standard_backward();
  void recompute_backward();

 private:
  bool full() const { return choice_.accounting == Accounting::full; }
  // Bytes of a row of q or out, for all query heads; of a key of k or v for `heads` heads.
  double q_row() const { return q_heads_ * d_ * element_; }
  double out_row() const { return q_heads_ * dv_ * element_; }
  double statistic_row() const { return full() ? q_heads_ * kStatisticBytes : 0; }
  void read(const char* tensor, double bytes) { move(tensor, bytes, 0); }
  void write(const char* tensor, double bytes) { move(tensor, 0, bytes); }
  void move(const char* tensor, double read_bytes, double write_bytes) {
    if (read_bytes + write_bytes > 0) {
      cost_.traffic.push_back({pass_, tensor, read_bytes, write_bytes});
    }
  }
  void read_keys(double keys, double heads) { read("k", keys * heads * d_ * element_); }
  void read_values(double keys, double heads) { read("v", keys * heads * dv_ * element_); }
  // fp32 sums that lay in slow memory, to elements.
  void convert(const char* sums, const char* tensor, double row_numbers);

  Cost& cost_;
  const Sums& sums_;
  const ScheduleChoice& choice_;
  double element_, sum_, q_heads_, kv_heads_, d_, dv_;
  const char* pass_ = "";
};

void TrafficList::convert(const char* sums, const char* tensor, double row_numbers) {
  if (sum_ == element_) return;
  const double numbers = sums_.rows * q_heads_ * row_numbers;
  pass_ = "convert";
  read(sums, numbers * sum_);
  write(tensor, numbers * element_);
  cost_.extra_bytes += numbers * sum_;
}

void TrafficList::standard() {
  cost_.passes = 3;
  cost_.extra_bytes = cost_.matrix_bytes;  // P over S
  pass_ = "scores";
  read("q", sums_.rows * q_row());
  read_keys(sums_.keys, q_heads_);
  write("S", cost_.matrix_bytes);
  pass_ = "softmax";
  read("S", cost_.matrix_bytes);
  write("P", cost_.matrix_bytes);
  pass_ = "output";
  read("P", cost_.matrix_bytes);
  read_values(sums_.keys, q_heads_);
  write("out", sums_.rows * out_row());
}

void TrafficList::keys_outside() {
  cost_.passes =
      static_cast<int64_t>(std::ceil(sums_.longest_keys / static_cast<double>(choice_.tile_keys)));
  pass_ = "tiles";
  read_keys(sums_.walk.keys, kv_heads_);
  read_values(sums_.walk.keys, kv_heads_);
  read("q", sums_.walk.rows * q_row());
  // Rows that no tile visits are written all the same.
  const double written = std::max(sums_.walk.rows, sums_.rows);
  const double partial = q_heads_ * dv_ * sum_;
  move(sum_ == element_ ? "out" : "partial out", sums_.walk.rows * partial, written * partial);
  move("m, l", 2 * sums_.walk.rows * statistic_row(), 2 * written * statistic_row());
  cost_.extra_bytes = 2 * sums_.rows * statistic_row();
  convert("partial out", "out", dv_);
}

void TrafficList::queries_outside() {
  cost_.passes =
      static_cast<int64_t>(std::ceil(sums_.longest_rows / static_cast<double>(choice_.tile_rows)));
  pass_ = "tiles";
  read("q", sums_.walk.rows * q_row());
  read_keys(sums_.walk.keys, q_heads_);
  read_values(sums_.walk.keys, q_heads_);
  write("out", sums_.rows * out_row());
  write("lse", sums_.rows * statistic_row());
  cost_.extra_bytes = sums_.rows * statistic_row();
}

void TrafficList::decode(int64_t cores) {
  const double blocks = std::max(1.0, sums_.sequences * kv_heads_);
  const double wanted = std::ceil(static_cast<double>(cores) / blocks);
  const double tiles = std::ceil(sums_.longest_keys / static_cast<double>(choice_.tile_keys));
  const double parts = std::clamp(wanted, 1.0, std::max(1.0, tiles));
  cost_.passes = static_cast<int64_t>(parts);
  pass_ = "tiles";
  read("q", sums_.walk.rows * q_row());
  read_keys(sums_.walk.keys, kv_heads_);
  read_values(sums_.walk.keys, kv_heads_);
  if (parts > 1) {
    const double partial = parts * sums_.rows * (q_heads_ * dv_ * sum_ + statistic_row());
    cost_.extra_bytes = partial;
    write("parts", partial);
    pass_ = "merge";
    read("parts", partial);
  }
  write("out", sums_.rows * out_row());
}

void TrafficList::standard_backward() {
  const double matrix = cost_.matrix_bytes;
  const double keys = sums_.keys * kv_heads_ * element_;
  cost_.passes = 5;
  cost_.extra_bytes = 2 * matrix;  // P kept from forward; dS over dP
  pass_ = "d_v";
  read("P", matrix);
  read("d_out", sums_.rows * out_row());
  write("d_v", keys * dv_);
  pass_ = "dP";
  read("d_out", sums_.rows * out_row());
  read_values(sums_.keys, q_heads_);
  write("dP", matrix);
  pass_ = "dS";
  read("P", matrix);
  read("dP", matrix);
  write("dS", matrix);
  pass_ = "d_q";
  read("dS", matrix);
  read_keys(sums_.keys, q_heads_);
  write("d_q", sums_.rows * q_row());
  pass_ = "d_k";
  read("dS", matrix);
  read("q", sums_.rows * q_row());
  write("d_k", keys * d_);
}

void TrafficList::recompute_backward() {
  const double keys = sums_.keys * kv_heads_ * element_;
  const double visited = sums_.walk.rows;
  cost_.passes =
      static_cast<int64_t>(std::ceil(sums_.longest_keys / static_cast<double>(choice_.tile_keys)));
  pass_ = "delta";
  read("out", sums_.rows * out_row());
  read("d_out", sums_.rows * out_row());
  write("delta", sums_.rows * statistic_row());
  pass_ = "tiles";
  read_keys(sums_.walk.keys, kv_heads_);
  read_values(sums_.walk.keys, kv_heads_);
  read("q", visited * q_row());
  read("d_out", visited * out_row());
  read("lse, delta", 2 * visited * statistic_row());
  const double partial = q_heads_ * d_ * sum_;
  move(sum_ == element_ ? "d_q" : "partial d_q", visited * partial,
       std::max(visited, sums_.rows) * partial);
  write("d_k", keys * d_);
  write("d_v", keys * dv_);
  cost_.extra_bytes = 2 * sums_.rows * statistic_row();
  convert("partial d_q", "d_q", d_);
}

}  // namespace

void add_traffic(const AttentionShape& shape, const ScheduleChoice& choice, int64_t cores,
                 const Sums& sums, Cost& cost) {
  TrafficList list(shape, choice, sums, cost);
  switch (choice.schedule) {
    case Schedule::standard:
      return list.standard();
    case Schedule::tiled_kv_outside:
      return list.keys_outside();
    case Schedule::tiled_q_outside:
      return list.queries_outside();
    case Schedule::decode:
      return list.decode(cores);
    case Schedule::standard_backward:
      return list.standard_backward();
    case Schedule::recompute_backward:
      return list.recompute_backward();
  }
}

}  // namespace tilewise::cost_model
