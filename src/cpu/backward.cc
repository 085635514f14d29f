// Backward on the CPU, in three passes over tasks:
//
//   1. prepare: delta = rowsum(dO * O) - dLSE of each row, d_sink, and zeros in d_q
//   2. gradients: a task is a range of keys of one kv head, for all its query heads and tiles; d_k
//      and d_v are sums of the worker, d_q is added to in the order of the ranges
//   3. finish: d_q from float sums to elements, where they differ
//
// Ranges, tiles and orders come from the shape only, so every bit of the result is the same for any
// number of threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "cpu/key_ranges.h"
#include "cpu/plans.h"
#include "cpu/single_key.h"
#include "cpu/threads.h"
#include "cpu/tiles.h"
#include "cpu/workspace.h"
#include "element.h"

namespace tilewise::cpu {

namespace {

// Panels that share a pass over K, V, d_k and d_v: more waste more at the edge of a mask.
constexpr int kMostPanels = 4;
constexpr int kFewPanels = 2;
constexpr int64_t kLongRows = 1024;  // from here on the most
constexpr int kBlockKeys = 64;
constexpr int kPrepareRows = 256;
// d_k and d_v of a range together: half of a 512 KiB second cache, K and V have the other half.
constexpr int64_t kRangeBytes = 256 * 1024;
constexpr int64_t kTileRangeBytes = 512 * 1024;  // where there are matrix tiles: 2 MiB

struct WorkerScratch {
  BackwardScratch arrays;
  int64_t* key_begin = nullptr;
  int64_t* key_end = nullptr;
  unsigned char* idle = nullptr;
  float* keys = nullptr;    // [range, key_row]
  float* values = nullptr;  // [range, value_row]
  float* d_k = nullptr;     // [range, head_dim]
  float* d_v = nullptr;     // [range, value_dim]
};

// The parts of the workspace that all workers share.
struct Shared {
  int64_t* q_table = nullptr;        // [batch + 1] packed only
  int64_t* prepare_table = nullptr;  // [batch + 1]
  int64_t* range_table = nullptr;    // [batch + 1]
  float* delta = nullptr;            // [q_heads, total_q]
  double* d_sink_parts = nullptr;    // [prepare tasks]
  double* d_sink_sums = nullptr;     // [q_heads]
  float* d_q = nullptr;              // [q_heads, total_q, head_dim], elements that are not floats
  std::atomic<int32_t>* turns = nullptr;  // [query tiles] ranges that have added to its d_q
};

class BackwardPlan final : public BackendPlan {
 public:
  BackwardPlan(const Problem& problem, const Kernels& kernels);

  const Backend& backend() const override { return cpu_backend(); }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string describe() const override {
    return described("instruction set", kernels_.name) +
           described("products", tiles_ != nullptr ? "on matrix tiles" : "in vectors") +
           described("query tile", std::to_string(grid_.rows) + " rows, " +
                                       std::to_string(settings_.panels) + " panels of " +
                                       std::to_string(grid_.width)) +
           described("keys a block",
                     std::to_string(tiles_ != nullptr ? tiles_->strip_keys : kBlockKeys)) +
           described("keys a task", std::to_string(range_keys_)) +
           described("threads", std::to_string(workers_));
  }
  void run(const Tensors& tensors, void* workspace, void* stream) const override;

 private:
  friend class BackwardRun;

  int64_t most_tiles(int64_t rows) const {
    return problem_.packed ? (problem_.total_q + rows - 1) / rows + problem_.batch
                           : problem_.batch * ((problem_.q_len + rows - 1) / rows);
  }
  int64_t most_ranges() const {
    const int64_t keys = range_keys_;
    const int64_t ranges = problem_.packed ? (problem_.total_kv + keys - 1) / keys + problem_.batch
                                           : problem_.batch * ((problem_.kv_len + keys - 1) / keys);
    return ranges * problem_.kv_heads;
  }
  // Of the copies and sums of so many keys.
  int64_t rows_of_range(int64_t keys) const {
    return tiles_ != nullptr ? whole(keys, tiles_->strip_keys) : keys;
  }
  bool wants(Arg arg) const { return problem_.has(arg); }
  bool wants_tiles() const { return wants(Arg::d_q) || wants(Arg::d_k) || wants(Arg::d_v); }
  // d_q is summed in the workspace.
  bool sums_d_q_apart() const { return wants(Arg::d_q) && problem_.dtype != DType::f32; }
  Shared cut_shared(WorkspaceCutter& cutter) const;
  WorkerScratch cut_worker(WorkspaceCutter& cutter) const;

  Problem problem_;
  const Kernels& kernels_;
  Settings settings_;
  const TileKernels* tiles_ = nullptr;  // null: in vectors
  TileGrid grid_;
  int64_t head_row_ = 0;  // floats of a row of d_k
  int64_t value_row_ = 0;
  int64_t range_keys_ = 0;
  int workers_ = 1;
  size_t workspace_bytes_ = 0;
};

BackwardPlan::BackwardPlan(const Problem& problem, const Kernels& kernels)
    : problem_(problem), kernels_(kernels), settings_(settings_of(problem)) {
  settings_.block_keys = kBlockKeys;
  if (fits_matrix_tiles(problem, settings_, kernels)) {
    tiles_ = kernels.tiles;
    settings_.panels = 1;
    grid_ = {tiles_->backward_rows, tiles_->backward_rows};
    head_row_ = whole(problem.head_dim, tiles_->columns);
    value_row_ = whole(problem.value_dim, tiles_->columns);
    settings_.key_row = head_row_;  // rows and columns, two words in a float's place
    settings_.value_row = value_row_ / 2;
  } else {
    settings_.panels = problem.q_len >= kLongRows ? kMostPanels : kFewPanels;
    grid_ = {settings_.panels * kernels.width, kernels.width};
    head_row_ = padded(problem.head_dim, kernels);
    value_row_ = padded(problem.value_dim, kernels);
  }
  const int64_t range_bytes = tiles_ != nullptr ? kTileRangeBytes : kRangeBytes;
  range_keys_ = std::clamp<int64_t>(
      range_bytes / (4 * (head_row_ + value_row_)) / kBlockKeys * kBlockKeys, 2 * kBlockKeys, 1024);
  range_keys_ = std::min(range_keys_, std::max<int64_t>(problem.kv_len, 1));
  const int64_t most_tasks = std::max(most_ranges(), most_tiles(kPrepareRows) * problem.q_heads);
  workers_ = static_cast<int>(std::clamp<int64_t>(most_tasks, 1, std::max(1, num_threads())));
  WorkspaceCutter cutter(nullptr);
  cut_shared(cutter);
  for (int i = 0; i < workers_; ++i) cut_worker(cutter);
  workspace_bytes_ = cutter.used();
}

Shared BackwardPlan::cut_shared(WorkspaceCutter& cutter) const {
  const int64_t table = problem_.packed ? problem_.batch + 1 : 0;
  const int64_t rows = problem_.total_q * problem_.q_heads;
  Shared shared;
  shared.q_table = cutter.take<int64_t>(table);
  shared.prepare_table = cutter.take<int64_t>(table);
  shared.range_table = cutter.take<int64_t>(table);
  shared.delta = cutter.take<float>(rows);
  if (wants(Arg::d_sink)) {
    shared.d_sink_parts = cutter.take<double>(most_tiles(kPrepareRows) * problem_.q_heads);
    shared.d_sink_sums = cutter.take<double>(problem_.q_heads);
  }
  if (sums_d_q_apart()) shared.d_q = cutter.take<float>(rows * problem_.head_dim);
  if (wants(Arg::d_q)) {
    shared.turns = cutter.take<std::atomic<int32_t>>(most_tiles(grid_.rows) * problem_.q_heads);
  }
  return shared;
}

WorkerScratch BackwardPlan::cut_worker(WorkspaceCutter& cutter) const {
  WorkerScratch scratch;
  if (!wants_tiles()) return scratch;
  const int64_t rows = grid_.rows;
  BackwardScratch& arrays = scratch.arrays;
  // Matrix tiles hold two words in a float's place, and whole tiles.
  const int64_t half = tiles_ != nullptr ? 2 : 1;
  const int64_t head_dim = tiles_ != nullptr ? head_row_ : problem_.head_dim;
  const int64_t value_dim = tiles_ != nullptr ? value_row_ : problem_.value_dim;
  const int64_t block = tiles_ != nullptr ? tiles_->strip_keys : kBlockKeys;
  arrays.queries = cutter.take<float>(rows * head_dim / half);
  arrays.d_outs = cutter.take<float>(rows * value_dim / half);
  arrays.query_rows = cutter.take<float>(rows * head_row_ / half);
  arrays.d_out_rows = cutter.take<float>(rows * value_row_ / half);
  arrays.d_queries = cutter.take<float>(rows * head_dim);
  arrays.weights = cutter.take<float>(rows * block);
  arrays.d_scores = cutter.take<float>(rows * block);
  if (tiles_ != nullptr) arrays.words = cutter.take<uint16_t>(tiles_->backward_words);
  if (settings_.dropout.active()) arrays.keep = cutter.take<float>(kBlockKeys * grid_.width);
  arrays.lse_log2 = cutter.take<float>(rows);
  arrays.delta = cutter.take<float>(rows);
  const int64_t keys = rows_of_range(range_keys_);
  scratch.keys = cutter.take<float>(keys * settings_.key_row);
  scratch.values = cutter.take<float>(keys * settings_.value_row);
  scratch.key_begin = cutter.take<int64_t>(rows);
  scratch.key_end = cutter.take<int64_t>(rows);
  scratch.idle = cutter.take<unsigned char>(rows);
  if (wants(Arg::d_k)) scratch.d_k = cutter.take<float>(keys * head_row_);
  if (wants(Arg::d_v)) scratch.d_v = cutter.take<float>(keys * value_row_);
  return scratch;
}

// One call: the passes and what they share.
class BackwardRun {
 public:
  BackwardRun(const BackwardPlan& plan, const Tensors& tensors, void* workspace)
      : plan_(plan),
        problem_(plan.problem_),
        tensors_(tensors),
        addresses_(plan.problem_, tensors),
        workspace_(static_cast<char*>(workspace)),
        cutter_(workspace),
        shared_(plan.cut_shared(cutter_)),
        prepare_tasks_(plan.problem_, addresses_, {kPrepareRows, kPrepareRows},
                       shared_.prepare_table),
        q_tiles_(plan.problem_, addresses_, plan.grid_, shared_.q_table),
        ranges_(plan.problem_, addresses_, plan.range_keys_, shared_.range_table) {
    WorkspaceCutter measure(nullptr);
    plan.cut_worker(measure);
    worker_bytes_ = measure.used();
  }

  void run() {
    const int workers = std::min(plan_.workers_, num_threads());
    for (int64_t i = 0; shared_.turns != nullptr && i < q_tiles_.count(); ++i) {
      shared_.turns[i].store(0, std::memory_order_relaxed);
    }
    parallel_for(prepare_tasks_.count(), workers, [this](int64_t task, int) { prepare(task); });
    write_d_sink();
    if (plan_.wants_tiles()) {
      parallel_for(ranges_.count(), workers,
                   [this](int64_t task, int worker) { attend_range(task, worker); });
    }
    if (plan_.sums_d_q_apart()) {
      parallel_for(prepare_tasks_.count(), workers,
                   [this](int64_t task, int) { finish_d_q(task); });
    }
  }

 private:
  int64_t row_index(const Sequence& sequence, int64_t head, int64_t row) const {
    return problem_.packed ? head * problem_.total_q + sequence.q_begin + row
                           : (sequence.index * problem_.q_heads + head) * problem_.q_len + row;
  }
  // Float sums of d_q from one row on.
  OutputRows d_q_sums(const Sequence& sequence, int64_t head, int64_t row) const {
    if (!plan_.wants(Arg::d_q)) return {};
    if (!plan_.sums_d_q_apart()) return addresses_.q_output(tensors_.d_q, sequence, head, row);
    return {shared_.d_q + row_index(sequence, head, row) * problem_.head_dim, problem_.head_dim};
  }

  void prepare(int64_t task) const;
  void write_d_sink() const;
  void attend_range(int64_t task, int worker) const;
  void attend_tile(const KeyTask& keys, const TilePlace& place, int64_t tile_task,
                   const WorkerScratch& scratch) const;
  void copy_range(const KeyTask& keys, const WorkerScratch& scratch) const;
  void mark_idle(const TilePlace& place, const BackwardTile& tile, unsigned char* idle) const;
  void add_single_keys(const TilePlace& place, const BackwardTile& tile) const;
  void write_range(const KeyTask& keys, const WorkerScratch& scratch) const;
  void finish_d_q(int64_t task) const;

  const BackwardPlan& plan_;
  const Problem& problem_;
  const Tensors& tensors_;
  Addresses addresses_;
  char* workspace_;
  WorkspaceCutter cutter_;
  Shared shared_;
  TileTasks prepare_tasks_;
  TileTasks q_tiles_;
  KeyRanges ranges_;
  size_t worker_bytes_ = 0;
};

double row_delta(const Problem& problem, const Rows& d_out, const Rows& out, int64_t row) {
  double sum = 0;
  for (int64_t d = 0; d < problem.value_dim; ++d) {
    sum += static_cast<double>(load_element(d_out.data, problem.dtype, row * d_out.stride + d)) *
           static_cast<double>(load_element(out.data, problem.dtype, row * out.stride + d));
  }
  return sum;
}

void BackwardRun::prepare(int64_t task) const {
  const TilePlace place = prepare_tasks_.place(task);
  const auto rows_of = [&](const Tensor& tensor) {
    return addresses_.q_rows(tensor, place.sequence, place.head, place.first_row);
  };
  const auto statistic_of = [&](const Tensor& tensor) {
    return addresses_.statistic(tensor, place.sequence, place.head, place.first_row);
  };
  const Rows d_out = rows_of(tensors_.d_out);
  const Rows out = rows_of(tensors_.out);
  const float* const d_lse = statistic_of(tensors_.d_lse);
  const float* const lse = statistic_of(tensors_.lse);
  const double sink = static_cast<double>(addresses_.sink(place.head));
  float* const deltas = shared_.delta + row_index(place.sequence, place.head, place.first_row);
  const OutputRows d_q = d_q_sums(place.sequence, place.head, place.first_row);
  double d_sink = 0;
  for (int row = 0; row < place.rows; ++row) {
    double delta = row_delta(problem_, d_out, out, row);
    if (d_lse != nullptr) delta -= static_cast<double>(d_lse[row]);
    deltas[row] = static_cast<float>(delta);
    if (shared_.d_sink_parts != nullptr && sink != -std::numeric_limits<double>::infinity()) {
      d_sink -= std::exp(sink - static_cast<double>(lse[row])) * delta;
    }
    if (d_q.data == nullptr) continue;
    float* const zeros = static_cast<float*>(d_q.data) + row * d_q.stride;
    std::fill(zeros, zeros + problem_.head_dim, 0.0f);
  }
  if (shared_.d_sink_parts != nullptr) shared_.d_sink_parts[task] = d_sink;
}

void BackwardRun::write_d_sink() const {
  if (!plan_.wants(Arg::d_sink)) return;
  std::fill_n(shared_.d_sink_sums, problem_.q_heads, 0.0);
  for (int64_t task = 0; task < prepare_tasks_.count(); ++task) {
    shared_.d_sink_sums[prepare_tasks_.place(task).head] += shared_.d_sink_parts[task];
  }
  auto* const d_sink = static_cast<float*>(tensors_.d_sink.data);
  for (int64_t head = 0; head < problem_.q_heads; ++head) {
    d_sink[head] = static_cast<float>(shared_.d_sink_sums[head]);
  }
}

void BackwardRun::attend_range(int64_t task, int worker) const {
  WorkspaceCutter own(workspace_ + cutter_.used() + static_cast<size_t>(worker) * worker_bytes_);
  const WorkerScratch scratch = plan_.cut_worker(own);
  const KeyTask keys = ranges_.task(task);
  const int64_t count = plan_.rows_of_range(keys.end - keys.begin);
  if (scratch.d_k != nullptr) std::fill_n(scratch.d_k, count * plan_.head_row_, 0.0f);
  if (scratch.d_v != nullptr) std::fill_n(scratch.d_v, count * plan_.value_row_, 0.0f);
  copy_range(keys, scratch);
  const int64_t group = problem_.q_heads / problem_.kv_heads;
  const int64_t tiles = plan_.grid_.tiles_of(keys.sequence.band.q_len);
  for (int64_t head = keys.kv_head * group; head < (keys.kv_head + 1) * group; ++head) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t tile_task = q_tiles_.first_of(keys.sequence.index) + head * tiles + tile;
      const TilePlace place = q_tiles_.place(tile_task);
      const semantics::Band& band = place.sequence.band;
      const semantics::KeyRange seen =
          band.keys_of_rows(place.first_row, place.first_row + place.rows);
      if (seen.empty() || seen.begin >= keys.end || seen.end <= keys.begin) continue;
      attend_tile(keys, place, tile_task, scratch);
    }
  }
  write_range(keys, scratch);
}

void BackwardRun::copy_range(const KeyTask& keys, const WorkerScratch& scratch) const {
  if (plan_.tiles_ != nullptr) {
    plan_.tiles_->copy_range(plan_.settings_,
                             {addresses_.kv_rows(tensors_.k, keys.sequence, keys.kv_head, 0),
                              addresses_.kv_rows(tensors_.v, keys.sequence, keys.kv_head, 0),
                              keys.begin, keys.end, scratch.keys, scratch.values});
    return;
  }
  RowsToCopy rows;
  rows.rows = keys.end - keys.begin;
  rows.from = addresses_.kv_rows(tensors_.k, keys.sequence, keys.kv_head, keys.begin);
  rows.dim = static_cast<int>(problem_.head_dim);
  rows.to = scratch.keys;
  rows.row = plan_.settings_.key_row;
  plan_.kernels_.copy_rows(plan_.settings_, rows);
  rows.from = addresses_.kv_rows(tensors_.v, keys.sequence, keys.kv_head, keys.begin);
  rows.dim = static_cast<int>(problem_.value_dim);
  rows.to = scratch.values;
  rows.row = plan_.settings_.value_row;
  plan_.kernels_.copy_rows(plan_.settings_, rows);
}

void BackwardRun::mark_idle(const TilePlace& place, const BackwardTile& tile,
                            unsigned char* idle) const {
  const int lanes = (place.rows + plan_.grid_.width - 1) / plan_.grid_.width * plan_.grid_.width;
  for (int lane = 0; lane < lanes; ++lane) {
    const bool single = !plan_.settings_.has_sink && tile.key_end[lane] - tile.key_begin[lane] == 1;
    const bool nothing =
        lane >= place.rows || tile.lse[lane] == -std::numeric_limits<float>::infinity();
    idle[lane] = single || nothing ? 1 : 0;
  }
}

void BackwardRun::add_single_keys(const TilePlace& place, const BackwardTile& tile) const {
  if (plan_.settings_.has_sink) return;
  for (int row = 0; row < place.rows; ++row) {
    const int64_t key = tile.key_begin[row];
    if (tile.key_end[row] - key != 1 || key < tile.range_begin || key >= tile.range_end) continue;
    SinglePairSums sums;
    const int64_t at = key - tile.range_begin;
    if (tile.d_k != nullptr) sums.d_k = tile.d_k + at * plan_.head_row_;
    if (tile.d_v != nullptr) sums.d_v = tile.d_v + at * plan_.value_row_;
    if (tile.d_q.data != nullptr) {
      sums.d_q = static_cast<float*>(tile.d_q.data) + row * tile.d_q.stride;
    }
    single_key_backward(problem_, tensors_, addresses_,
                        {place.sequence, place.head, place.first_row + row, key}, sums);
  }
}

void BackwardRun::attend_tile(const KeyTask& keys, const TilePlace& place, int64_t tile_task,
                              const WorkerScratch& scratch) const {
  BackwardTile tile;
  fill_tile(problem_, tensors_, addresses_, place, tile);
  fill_intervals(place.sequence.band, place, plan_.grid_, scratch.key_begin, scratch.key_end);
  tile.key_begin = scratch.key_begin;
  tile.key_end = scratch.key_end;
  tile.d_out = addresses_.q_rows(tensors_.d_out, place.sequence, place.head, place.first_row);
  tile.lse = addresses_.statistic(tensors_.lse, place.sequence, place.head, place.first_row);
  tile.delta = shared_.delta + row_index(place.sequence, place.head, place.first_row);
  mark_idle(place, tile, scratch.idle);
  tile.idle = scratch.idle;
  tile.range_begin = keys.begin;
  tile.range_end = keys.end;
  tile.keys = scratch.keys;
  tile.values = scratch.values;
  tile.d_k = scratch.d_k;
  tile.d_v = scratch.d_v;
  tile.d_q = d_q_sums(place.sequence, place.head, place.first_row);
  const bool on_tiles = plan_.tiles_ != nullptr;
  (on_tiles ? plan_.tiles_->backward_tile : plan_.kernels_.backward_tile)(plan_.settings_, tile,
                                                                          scratch.arrays);
  if (tile.d_q.data == nullptr) return add_single_keys(place, tile);
  // Ranges add in order. Earlier ranges are earlier tasks, so they are finished or being run.
  std::atomic<int32_t>& turn = shared_.turns[tile_task];
  const auto mine = static_cast<int32_t>((keys.begin - ranges_.first_seen(scratch.key_begin[0])) /
                                         plan_.range_keys_);
  for (int round = 0; turn.load(std::memory_order_acquire) != mine; ++round) pause_thread(round);
  (on_tiles ? plan_.tiles_->add_d_q : plan_.kernels_.add_d_q)(plan_.settings_, tile,
                                                              scratch.arrays);
  add_single_keys(place, tile);
  turn.store(mine + 1, std::memory_order_release);
}

void BackwardRun::write_range(const KeyTask& keys, const WorkerScratch& scratch) const {
  RowsToWrite rows;
  rows.rows = keys.end - keys.begin;
  rows.element = plan_.settings_.element;
  if (scratch.d_k != nullptr) {
    rows.dim = static_cast<int>(problem_.head_dim);
    rows.floats = {scratch.d_k, plan_.head_row_};
    rows.factor = static_cast<float>(problem_.scale);
    rows.to = addresses_.kv_output(tensors_.d_k, keys.sequence, keys.kv_head, keys.begin);
    plan_.kernels_.write_rows(rows);
  }
  if (scratch.d_v != nullptr) {
    rows.dim = static_cast<int>(problem_.value_dim);
    rows.floats = {scratch.d_v, plan_.value_row_};
    rows.factor = 1;
    rows.to = addresses_.kv_output(tensors_.d_v, keys.sequence, keys.kv_head, keys.begin);
    plan_.kernels_.write_rows(rows);
  }
}

void BackwardRun::finish_d_q(int64_t task) const {
  const TilePlace place = prepare_tasks_.place(task);
  const OutputRows sums = d_q_sums(place.sequence, place.head, place.first_row);
  RowsToWrite rows;
  rows.floats = {sums.data, sums.stride};
  rows.rows = place.rows;
  rows.dim = static_cast<int>(problem_.head_dim);
  rows.element = plan_.settings_.element;
  rows.to = addresses_.q_output(tensors_.d_q, place.sequence, place.head, place.first_row);
  plan_.kernels_.write_rows(rows);
}

void BackwardPlan::run(const Tensors& tensors, void* workspace, void* /*stream*/) const {
  BackwardRun(*this, tensors, workspace).run();
}

}  // namespace

std::unique_ptr<const BackendPlan> plan_backward(const Problem& problem, const Kernels& kernels) {
  return std::make_unique<BackwardPlan>(problem, kernels);
}

}  // namespace tilewise::cpu
