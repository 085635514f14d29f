// The passes of the schedules. In short, for N rows and keys, one head, nothing masked:
//
//   standard          q, k, v, out once; the matrix 4 times: write S, read S, write P, read P
//   K and V outside   k, v once; N / tile_keys times read q, read out, write out
//   q outside         q, out once; N / tile_rows times read k, v
//   decode            q, out, k, v once; partial outputs and lse of the parts, written and read
//   backward          standard: P twice, dP twice, dS three times; recompute: k, v, d_k, d_v once,
//                     N / tile_keys times read q, read d_out, read and write d_q
//
// Heads: q, out and their gradients count for each query head, k and v for each kv head; only q
// outside reads k and v for each query head.
//
// Cache: what is read again comes from it, if it holds that for all heads that run together. The
// matrices of standard attention do if both fit. Tiles of one head that run together and do not
// fit still share one read, because they go through the keys (or rows) in step.
#include "cost/traffic.h"

#include <algorithm>
#include <cmath>

#include "cost/tiles.h"

namespace tilewise::cost_model {

namespace {

constexpr double kStatisticBytes = 4;

class TrafficList {
 public:
  TrafficList(const AttentionShape& shape, const ScheduleChoice& choice,
              const MachineRoofs& machine, const Sums& sums, Cost& cost)
      : cost_(cost),
        sums_(sums),
        choice_(choice),
        element_(static_cast<double>(size_of(shape.dtype))),
        sum_(accumulator_bytes(shape, choice.accounting)),
        q_heads_(static_cast<double>(shape.q_heads)),
        kv_heads_(static_cast<double>(shape.kv_heads)),
        cores_(static_cast<double>(machine.cores)),
        cache_bytes_(choice.accounting == Accounting::full ? machine.cache_bytes : 0),
        d_(static_cast<double>(shape.head_dim)),
        dv_(static_cast<double>(shape.value_dim)) {}

  void standard();
  void keys_outside();
  void queries_outside();
  void decode();
  void standard_backward();
  void recompute_backward();

 private:
  bool full() const { return choice_.accounting == Accounting::full; }
  // Bytes of a row of q or out, for all query heads; of a key of k or v for `heads` heads.
  double q_row() const { return q_heads_ * d_ * element_; }
  double out_row() const { return q_heads_ * dv_ * element_; }
  double statistic_row() const { return full() ? q_heads_ * kStatisticBytes : 0; }
  // Opens a pass that does these parts of the schedule's operations.
  void begin(const char* pass, double flops_share, double exps_share) {
    pass_ = pass;
    cost_.work.push_back({pass, flops_share * cost_.executed_flops, exps_share * cost_.exps});
  }
  void read(const char* tensor, double bytes) { move(tensor, bytes, 0); }
  void write(const char* tensor, double bytes) { move(tensor, 0, bytes); }
  void move(const char* tensor, double read_bytes, double write_bytes, double cached_bytes = 0) {
    if (read_bytes + write_bytes + cached_bytes > 0) {
      cost_.traffic.push_back({pass_, tensor, read_bytes, write_bytes, cached_bytes});
    }
  }
  // A pass over a matrix of standard attention.
  void read_matrix(const char* tensor) { move_matrix(tensor, cost_.matrix_bytes, 0); }
  void write_matrix(const char* tensor) { move_matrix(tensor, 0, cost_.matrix_bytes); }
  void move_matrix(const char* tensor, double read_bytes, double write_bytes) {
    if (2 * cost_.matrix_bytes > cache_bytes_) return move(tensor, read_bytes, write_bytes);
    move(tensor, 0, 0, read_bytes + write_bytes);
  }
  void read_keys() { read("k", sums_.keys * kv_heads_ * d_ * element_); }
  void read_values() { read("v", sums_.keys * kv_heads_ * dv_ * element_); }
  // Sets what part of repeated reads reaches slow memory: `set_bytes` is what a head reads again,
  // `tiles` how often, `together` how many of its tiles run at once.
  void look_at_cache(double set_bytes, double tiles, double together);
  // `bytes` with repetition, of which `once` are different ones.
  void read_again(const char* tensor, double bytes, double once) {
    const double slow = std::max(std::min(bytes, once), bytes * slow_share_);
    move(tensor, slow, 0, bytes - slow);
  }
  void update_again(const char* tensor, double read_bytes, double write_bytes, double once) {
    const double slow_read = std::max(std::min(read_bytes, once), read_bytes * slow_share_);
    const double slow_write = std::max(std::min(write_bytes, once), write_bytes * slow_share_);
    move(tensor, slow_read, slow_write, read_bytes + write_bytes - slow_read - slow_write);
  }
  // fp32 sums that lay in slow memory, to elements.
  void convert(const char* sums, const char* tensor, double row_numbers);

  Cost& cost_;
  const Sums& sums_;
  const ScheduleChoice& choice_;
  double element_, sum_, q_heads_, kv_heads_, cores_, cache_bytes_, d_, dv_;
  double slow_share_ = 1;
  const char* pass_ = "";
};

void TrafficList::look_at_cache(double set_bytes, double tiles, double together) {
  if (cache_bytes_ <= 0) return;
  const double heads = std::max(1.0, sums_.sequences * kv_heads_);
  const double heads_together = std::min(heads, std::ceil(cores_ / together));
  const bool held = heads_together * set_bytes <= cache_bytes_;
  slow_share_ = held ? 0 : std::ceil(tiles / together) / std::max(1.0, tiles);
}

void TrafficList::convert(const char* sums, const char* tensor, double row_numbers) {
  if (sum_ == element_) return;
  const double numbers = sums_.rows * q_heads_ * row_numbers;
  begin("convert", 0, 0);
  read(sums, numbers * sum_);
  write(tensor, numbers * element_);
  cost_.extra_bytes += numbers * sum_;
}

void TrafficList::standard() {
  cost_.passes = 3;
  cost_.extra_bytes = cost_.matrix_bytes;  // P over S
  const double of_scores = d_ / (d_ + dv_);
  begin("scores", of_scores, 0);
  read("q", sums_.rows * q_row());
  read_keys();
  write_matrix("S");
  begin("softmax", 0, 1);
  read_matrix("S");
  write_matrix("P");
  begin("output", 1 - of_scores, 0);
  read_matrix("P");
  read_values();
  write("out", sums_.rows * out_row());
}

void TrafficList::keys_outside() {
  const double tiles = std::ceil(sums_.longest_keys / static_cast<double>(choice_.tile_keys));
  cost_.passes = static_cast<int64_t>(tiles);
  begin("tiles", 1, 1);
  read_keys();
  read_values();
  const double partial = q_heads_ * dv_ * sum_;
  const double group = 1 / kv_heads_;
  look_at_cache(sums_.longest_rows * (q_row() + partial + 2 * statistic_row()) * group, tiles, 1);
  read_again("q", sums_.walk.rows * q_row(), sums_.rows * q_row());
  // Rows that no tile visits are written all the same.
  const double written = std::max(sums_.walk.rows, sums_.rows);
  update_again(sum_ == element_ ? "out" : "partial out", sums_.walk.rows * partial,
               written * partial, sums_.rows * partial);
  update_again("m, l", 2 * sums_.walk.rows * statistic_row(), 2 * written * statistic_row(),
               2 * sums_.rows * statistic_row());
  cost_.extra_bytes = 2 * sums_.rows * statistic_row();
  convert("partial out", "out", dv_);
}

void TrafficList::queries_outside() {
  const double tiles = std::ceil(sums_.longest_rows / static_cast<double>(choice_.tile_rows));
  cost_.passes = static_cast<int64_t>(tiles);
  begin("tiles", 1, 1);
  read("q", sums_.walk.rows * q_row());
  const double group = q_heads_ / kv_heads_;
  look_at_cache(sums_.longest_keys * (d_ + dv_) * element_, tiles * group,
                std::clamp(tiles * group, 1.0, cores_));
  const double reads = sums_.walk.keys * q_heads_ * element_;
  const double once = sums_.keys * kv_heads_ * element_;
  read_again("k", reads * d_, once * d_);
  read_again("v", reads * dv_, once * dv_);
  write("out", sums_.rows * out_row());
  write("lse", sums_.rows * statistic_row());
  cost_.extra_bytes = sums_.rows * statistic_row();
}

void TrafficList::decode() {
  const double blocks = std::max(1.0, sums_.sequences * kv_heads_);
  const double wanted = std::ceil(cores_ / blocks);
  const double tiles = std::ceil(sums_.longest_keys / static_cast<double>(choice_.tile_keys));
  const double parts = std::clamp(wanted, 1.0, std::max(1.0, tiles));
  cost_.passes = static_cast<int64_t>(parts);
  begin("tiles", 1, 1);
  read("q", sums_.walk.rows * q_row());
  read("k", sums_.walk.keys * kv_heads_ * d_ * element_);
  read("v", sums_.walk.keys * kv_heads_ * dv_ * element_);
  if (parts > 1) {
    const double partial = parts * sums_.rows * (q_heads_ * dv_ * sum_ + statistic_row());
    cost_.extra_bytes = partial;
    write("parts", partial);
    begin("merge", 0, 0);
    read("parts", partial);
  }
  write("out", sums_.rows * out_row());
}

void TrafficList::standard_backward() {
  const double keys = sums_.keys * kv_heads_ * element_;
  cost_.passes = 5;
  cost_.extra_bytes = 2 * cost_.matrix_bytes;  // P kept from forward; dS over dP
  const double of_d = d_ / (2 * (d_ + dv_));
  const double of_dv = dv_ / (2 * (d_ + dv_));
  begin("d_v", of_dv, 0);
  read_matrix("P");
  read("d_out", sums_.rows * out_row());
  write("d_v", keys * dv_);
  begin("dP", of_dv, 0);
  read("d_out", sums_.rows * out_row());
  read_values();
  write_matrix("dP");
  begin("dS", 0, 0);
  read_matrix("P");
  read_matrix("dP");
  write_matrix("dS");
  begin("d_q", of_d, 0);
  read_matrix("dS");
  read_keys();
  write("d_q", sums_.rows * q_row());
  begin("d_k", of_d, 0);
  read_matrix("dS");
  read("q", sums_.rows * q_row());
  write("d_k", keys * d_);
}

void TrafficList::recompute_backward() {
  const double keys = sums_.keys * kv_heads_ * element_;
  const double visited = sums_.walk.rows;
  const double tiles = std::ceil(sums_.longest_keys / static_cast<double>(choice_.tile_keys));
  cost_.passes = static_cast<int64_t>(tiles);
  begin("delta", 0, 0);
  read("out", sums_.rows * out_row());
  read("d_out", sums_.rows * out_row());
  write("delta", sums_.rows * statistic_row());
  begin("tiles", 1, 1);
  read_keys();
  read_values();
  const double partial = q_heads_ * d_ * sum_;
  const double a_row = q_row() + out_row() + partial + 2 * statistic_row();
  look_at_cache(sums_.longest_rows * a_row / kv_heads_, tiles, std::clamp(tiles, 1.0, cores_));
  read_again("q", visited * q_row(), sums_.rows * q_row());
  read_again("d_out", visited * out_row(), sums_.rows * out_row());
  read_again("lse, delta", 2 * visited * statistic_row(), 2 * sums_.rows * statistic_row());
  update_again(sum_ == element_ ? "d_q" : "partial d_q", visited * partial,
               std::max(visited, sums_.rows) * partial, sums_.rows * partial);
  write("d_k", keys * d_);
  write("d_v", keys * dv_);
  cost_.extra_bytes = 2 * sums_.rows * statistic_row();
  convert("partial d_q", "d_q", d_);
}

}  // namespace

void add_traffic(const AttentionShape& shape, const ScheduleChoice& choice,
                 const MachineRoofs& machine, const Sums& sums, Cost& cost) {
  TrafficList list(shape, choice, machine, sums, cost);
  switch (choice.schedule) {
    case Schedule::standard:
      return list.standard();
    case Schedule::tiled_kv_outside:
      return list.keys_outside();
    case Schedule::tiled_q_outside:
      return list.queries_outside();
    case Schedule::decode:
      return list.decode();
    case Schedule::standard_backward:
      return list.standard_backward();
    case Schedule::recompute_backward:
      return list.recompute_backward();
  }
}

}  // namespace tilewise::cost_model
