// cost(): checks, sums over the sequences, counts operations, lists traffic and divides by the
// roofs. The traffic itself is traffic.cc; docs/io-model.md explains every term.
#include "tilewise/cost.hpp"

#include <algorithm>

#include "cost/pairs.h"
#include "cost/tiles.h"
#include "cost/traffic.h"
#include "error.h"

namespace tilewise {

namespace {

constexpr double kSoftmaxFlops = 5;      // for each score: maximum, subtract, exp, add, divide
constexpr double kFeedForwardParts = 3;  // gate, up, down

void require(bool holds, const char* argument, double got, const char* expected) {
  if (holds) return;
  std::string text = std::to_string(got);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  throw_invalid("tilewise::cost", argument, text, expected, "");
}

void require(bool holds, const char* argument, int64_t got, const char* expected) {
  require(holds, argument, static_cast<double>(got), expected);
}

void check_shape(const AttentionShape& s) {
  require(s.batch >= 0, "shape.batch", s.batch, "0 or more");
  require(s.q_len >= 0, "shape.q_len", s.q_len, "0 or more");
  require(s.kv_len >= 0, "shape.kv_len", s.kv_len, "0 or more");
  require(s.head_dim > 0, "shape.head_dim", s.head_dim, "1 or more");
  require(s.value_dim > 0, "shape.value_dim", s.value_dim, "1 or more");
  require(s.kv_heads > 0, "shape.kv_heads", s.kv_heads, "1 or more");
  require(s.q_heads > 0 && s.q_heads % s.kv_heads == 0, "shape.q_heads", s.q_heads,
          "a multiple of kv_heads");
  require(size_of(s.dtype) > 0, "shape.dtype", size_of(s.dtype), "fp32, bf16 or fp16");
  for (const SequenceLengths& sequence : s.sequences) {
    require(sequence.q_len >= 0, "shape.sequences.q_len", sequence.q_len, "0 or more");
    require(sequence.kv_len >= 0, "shape.sequences.kv_len", sequence.kv_len, "0 or more");
  }
}

void check_machine(const MachineRoofs& m) {
  require(m.flops_per_s > 0, "machine.flops_per_s", m.flops_per_s, "more than 0");
  require(m.bytes_per_s > 0, "machine.bytes_per_s", m.bytes_per_s, "more than 0");
  require(m.exps_per_s >= 0, "machine.exps_per_s", m.exps_per_s, "0 or more");
  require(m.cache_bytes >= 0, "machine.cache_bytes", m.cache_bytes, "0 or more");
  require(m.cores > 0, "machine.cores", m.cores, "1 or more");
}

bool is_backward(Schedule schedule) {
  return schedule == Schedule::standard_backward || schedule == Schedule::recompute_backward;
}

bool has_tiles(Schedule schedule) {
  return schedule != Schedule::standard && schedule != Schedule::standard_backward;
}

semantics::Band band_of(const Mask& mask, const SequenceLengths& lengths) {
  return semantics::make_band(
      {mask.left, mask.right, static_cast<int>(mask.alignment), mask.offset}, lengths.q_len,
      lengths.kv_len);
}

cost_model::TileWalk walk_of(const semantics::Band& band, const ScheduleChoice& choice) {
  switch (choice.schedule) {
    case Schedule::tiled_kv_outside:
    case Schedule::recompute_backward:
      return cost_model::walk_key_tiles(band, choice.tile_rows, choice.tile_keys);
    case Schedule::tiled_q_outside:
      return cost_model::walk_query_tiles(band, choice.tile_rows, choice.tile_keys);
    case Schedule::decode:  // all rows at once
      return cost_model::walk_query_tiles(band, std::max<int64_t>(1, band.q_len), choice.tile_keys);
    default:
      return cost_model::walk_query_tiles(
          {band.q_len, band.kv_len, 0, semantics::kUnbounded, semantics::kUnbounded},
          std::max<int64_t>(1, band.q_len), 1);
  }
}

void add_sequence(const AttentionShape& shape, const ScheduleChoice& choice,
                  const SequenceLengths& lengths, double times, cost_model::Sums& sums) {
  const semantics::Band band = band_of(shape.mask, lengths);
  const auto rows = static_cast<double>(lengths.q_len);
  const auto keys = static_cast<double>(lengths.kv_len);
  const cost_model::TileWalk walk = walk_of(band, choice);
  sums.sequences += times;
  sums.rows += times * rows;
  sums.keys += times * keys;
  sums.all_pairs += times * rows * keys;
  sums.visible_pairs += times * cost_model::visible_pairs(band);
  sums.longest_rows = std::max(sums.longest_rows, rows);
  sums.longest_keys = std::max(sums.longest_keys, keys);
  sums.walk.pairs += times * walk.pairs;
  sums.walk.rows += times * walk.rows;
  sums.walk.keys += times * walk.keys;
}

cost_model::Sums sums_of(const AttentionShape& shape, const ScheduleChoice& choice) {
  cost_model::Sums sums;
  if (shape.sequences.empty()) {
    add_sequence(shape, choice, {shape.q_len, shape.kv_len}, static_cast<double>(shape.batch),
                 sums);
  }
  for (const SequenceLengths& lengths : shape.sequences) {
    add_sequence(shape, choice, lengths, 1, sums);
  }
  return sums;
}

void count_operations(const AttentionShape& shape, Schedule schedule, const cost_model::Sums& sums,
                      Cost& cost) {
  const auto heads = static_cast<double>(shape.q_heads);
  const auto d = static_cast<double>(shape.head_dim);
  const auto dv = static_cast<double>(shape.value_dim);
  cost.all_pairs = heads * sums.all_pairs;
  cost.visible_pairs = heads * sums.visible_pairs;
  cost.executed_pairs = heads * sums.walk.pairs;
  // Forward S and out; backward d_v, dP, d_q and d_k. Recomputation makes S once more.
  const double useful = is_backward(schedule) ? 4 * (d + dv) : 2 * (d + dv);
  const double executed = schedule == Schedule::recompute_backward ? useful + 2 * d : useful;
  cost.useful_flops = useful * cost.visible_pairs;
  cost.executed_flops = executed * cost.executed_pairs;
  cost.exps = schedule == Schedule::standard_backward ? 0 : cost.executed_pairs;
}

double compulsory_bytes(const AttentionShape& shape, Schedule schedule,
                        const cost_model::Sums& sums) {
  const auto d = static_cast<double>(shape.head_dim);
  const auto dv = static_cast<double>(shape.value_dim);
  const double rows = sums.rows * static_cast<double>(shape.q_heads);
  const double keys = sums.keys * static_cast<double>(shape.kv_heads);
  // Backward: q, out, d_out, d_q; k, v, d_k, d_v.
  const double numbers =
      is_backward(schedule) ? 2 * (rows + keys) * (d + dv) : (rows + keys) * (d + dv);
  return numbers * static_cast<double>(size_of(shape.dtype));
}

// A pass starts when the one before it has ended: nothing of the two overlaps.
double seconds_of_passes(const MachineRoofs& machine, const Cost& cost) {
  double sum = 0;
  for (const Work& work : cost.work) {
    double bytes = 0;
    for (const Traffic& item : cost.traffic) {
      if (item.pass == work.pass) bytes += item.read_bytes + item.write_bytes;
    }
    const double exp_s = machine.exps_per_s > 0 ? work.exps / machine.exps_per_s : 0;
    sum += std::max({bytes / machine.bytes_per_s, work.flops / machine.flops_per_s, exp_s});
  }
  return sum;
}

void add_times(const MachineRoofs& machine, Cost& cost) {
  for (const Traffic& item : cost.traffic) {
    cost.read_bytes += item.read_bytes;
    cost.write_bytes += item.write_bytes;
    cost.cached_bytes += item.cached_bytes;
  }
  cost.intensity = cost.bytes() > 0 ? cost.executed_flops / cost.bytes() : 0;
  cost.memory_s = cost.bytes() / machine.bytes_per_s;
  cost.compute_s = cost.executed_flops / machine.flops_per_s;
  cost.exp_s = machine.exps_per_s > 0 ? cost.exps / machine.exps_per_s : 0;
  if (cost.exp_s > std::max(cost.memory_s, cost.compute_s)) {
    cost.bound = Bound::exponentials;
  } else {
    cost.bound = cost.compute_s > cost.memory_s ? Bound::compute : Bound::memory;
  }
  cost.passes_s = seconds_of_passes(machine, cost);
}

// The choice with every tile size known; no larger than the longest sequence.
ScheduleChoice complete(const AttentionShape& shape, const ScheduleChoice& choice,
                        double fast_bytes) {
  int64_t rows = shape.sequences.empty() ? shape.q_len : 0;
  int64_t keys = shape.sequences.empty() ? shape.kv_len : 0;
  for (const SequenceLengths& lengths : shape.sequences) {
    rows = std::max(rows, lengths.q_len);
    keys = std::max(keys, lengths.kv_len);
  }
  ScheduleChoice whole = choice;
  if (choice.schedule == Schedule::decode)
    whole.tile_rows = rows * (shape.q_heads / shape.kv_heads);
  whole = cost_model::with_tiles(shape, whole, fast_bytes);
  whole.tile_rows = std::min(whole.tile_rows, std::max<int64_t>(1, rows * shape.q_heads));
  whole.tile_keys = std::min(whole.tile_keys, std::max<int64_t>(1, keys));
  return whole;
}

}  // namespace

std::string_view name_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::standard:
      return "standard";
    case Schedule::tiled_kv_outside:
      return "tiled, k and v outside";
    case Schedule::tiled_q_outside:
      return "tiled, q outside";
    case Schedule::decode:
      return "decode";
    case Schedule::standard_backward:
      return "standard backward";
    case Schedule::recompute_backward:
      return "recompute backward";
  }
  return "";
}

std::string_view name_of(Bound bound) {
  switch (bound) {
    case Bound::memory:
      return "memory";
    case Bound::compute:
      return "compute";
    case Bound::exponentials:
      return "exp";
  }
  return "";
}

Cost cost(const AttentionShape& shape, const ScheduleChoice& choice, const MachineRoofs& machine) {
  check_shape(shape);
  check_machine(machine);
  require(choice.tile_rows >= 0, "choice.tile_rows", choice.tile_rows, "0 or more");
  require(choice.tile_keys >= 0, "choice.tile_keys", choice.tile_keys, "0 or more");
  Cost result;
  ScheduleChoice whole = choice;
  if (has_tiles(choice.schedule)) {
    require(machine.fast_bytes > 0 || (choice.tile_rows > 0 && choice.tile_keys > 0),
            "machine.fast_bytes", machine.fast_bytes, "more than 0 where tile sizes are not named");
    whole = complete(shape, choice, machine.fast_bytes);
    result.tile_rows = whole.tile_rows;
    result.tile_keys = whole.tile_keys;
    result.working_set_bytes = working_set_bytes(shape, whole);
  }
  const cost_model::Sums sums = sums_of(shape, whole);
  count_operations(shape, choice.schedule, sums, result);
  const DType matrix = choice.matrix_dtype == DType::none ? shape.dtype : choice.matrix_dtype;
  result.matrix_bytes = result.all_pairs * static_cast<double>(size_of(matrix));
  result.compulsory_bytes = compulsory_bytes(shape, choice.schedule, sums);
  cost_model::add_traffic(shape, whole, machine, sums, result);
  add_times(machine, result);
  return result;
}

double softmax_intensity(DType dtype) {
  const auto element = static_cast<double>(size_of(dtype));
  return element > 0 ? kSoftmaxFlops / (2 * element) : 0;
}

double layer_flops(const AttentionShape& shape, int64_t hidden, int64_t ffn) {
  int64_t rows = shape.batch * shape.q_len;
  if (!shape.sequences.empty()) rows = 0;
  for (const SequenceLengths& lengths : shape.sequences) rows += lengths.q_len;
  const auto width = static_cast<double>(hidden);
  const auto d = static_cast<double>(shape.head_dim + shape.value_dim);
  const double weights = width * d * static_cast<double>(shape.q_heads + shape.kv_heads) +
                         kFeedForwardParts * width * static_cast<double>(ffn);
  return 2 * static_cast<double>(rows) * weights;
}

}  // namespace tilewise
