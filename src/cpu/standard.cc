// Backend "standard", chosen only by name: attention with its score matrix in memory, pass by pass
// over all heads, as it was before tiling. It shares the micro-kernels, packing and thread pool of
// the cpu backend (standard.h) and computes masked parts in full, as a matrix does.
#include <algorithm>
#include <limits>
#include <string>

#include "cpu/isa.h"
#include "cpu/key_ranges.h"
#include "cpu/pass_times.h"
#include "cpu/plans.h"
#include "cpu/single_key.h"
#include "cpu/threads.h"
#include "cpu/tiles.h"
#include "cpu/workspace.h"

namespace tilewise {

namespace cpu {

namespace {

// Tiles as the tiled kernels take them, but twice as many rows in backward: here no other pass
// shares the caches, and sums over more rows load and store d_k and d_v less often.
constexpr int kForwardPanels = 8;
constexpr int kForwardBlockKeys = 128;
constexpr int kBackwardPanels = 8;
constexpr int kBackwardBlockKeys = 64;
constexpr int64_t kRangeKeys = 256;  // of a task: its d_k and d_v stay in the second cache

struct WorkerScratch {
  BackwardScratch arrays;
  int64_t* key_begin = nullptr;
  int64_t* key_end = nullptr;
  unsigned char* idle = nullptr;
  float* d_k = nullptr;  // [range, head_dim]
  float* d_v = nullptr;  // [range, value_dim]
};

// The matrices, for all heads: [b, q_heads, tiles, kv_len, rows of a tile]; in forward
// [b, q_heads, tiles, panels, kv_len, rows of a panel].
struct Matrices {
  float* scores = nullptr;
  float* d_scores = nullptr;
  float* d_q = nullptr;  // [b, q_heads, q_len, head_dim] sums, where elements are not floats
};

class StandardPlan final : public BackendPlan {
 public:
  StandardPlan(const Problem& problem, const Kernels& kernels)
      : problem_(problem), kernels_(kernels), settings_(settings_of(problem)) {
    settings_.panels = backward() ? kBackwardPanels : kForwardPanels;
    settings_.block_keys = backward() ? kBackwardBlockKeys : kForwardBlockKeys;
    settings_.copy_keys = settings_.copy_keys || backward();  // as the tiled kernels do
    settings_.copy_values = settings_.copy_values || !backward();
    grid_ = {settings_.panels * kernels.width, kernels.width};
    workers_ = static_cast<int>(std::clamp<int64_t>(tiles(), 1, std::max(1, num_threads())));
    WorkspaceCutter cutter(nullptr);
    cut_matrices(cutter);
    for (int i = 0; i < workers_; ++i) cut_worker(cutter);
    workspace_bytes_ = cutter.used();
  }

  const Backend& backend() const override { return standard_backend(); }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string describe() const override {
    return described("instruction set", kernels_.name) +
           described("score matrix", std::to_string(matrix_floats() * 4) + " bytes, " +
                                         (backward() ? "twice" : "once")) +
           described("threads", std::to_string(workers_));
  }
  void run(const Tensors& tensors, void* workspace, void* stream) const override;

 private:
  friend class StandardRun;

  bool backward() const { return problem_.direction == Direction::backward; }
  int64_t tiles() const {
    return problem_.batch * problem_.q_heads * grid_.tiles_of(problem_.q_len);
  }
  int64_t matrix_floats() const { return tiles() * problem_.kv_len * grid_.rows; }
  bool wants(Arg arg) const { return problem_.has(arg); }
  Matrices cut_matrices(WorkspaceCutter& cutter) const;
  WorkerScratch cut_worker(WorkspaceCutter& cutter) const;

  Problem problem_;
  const Kernels& kernels_;
  Settings settings_;
  TileGrid grid_;
  int workers_ = 1;
  size_t workspace_bytes_ = 0;
};

Matrices StandardPlan::cut_matrices(WorkspaceCutter& cutter) const {
  Matrices matrices;
  matrices.scores = cutter.take<float>(matrix_floats());
  if (backward()) matrices.d_scores = cutter.take<float>(matrix_floats());
  if (wants(Arg::d_q) && problem_.dtype != DType::f32) {
    matrices.d_q = cutter.take<float>(problem_.total_q * problem_.q_heads * problem_.head_dim);
  }
  return matrices;
}

WorkerScratch StandardPlan::cut_worker(WorkspaceCutter& cutter) const {
  const int64_t rows = grid_.rows;
  WorkerScratch scratch;
  BackwardScratch& arrays = scratch.arrays;
  arrays.queries = cutter.take<float>(rows * problem_.head_dim);
  arrays.d_outs = cutter.take<float>(rows * problem_.value_dim);
  const int64_t keys = settings_.block_keys;
  arrays.keys = cutter.take<float>(settings_.copy_keys ? keys * settings_.key_row : 0);
  arrays.values = cutter.take<float>(settings_.copy_values ? keys * settings_.value_row : 0);
  scratch.key_begin = cutter.take<int64_t>(rows);
  scratch.key_end = cutter.take<int64_t>(rows);
  scratch.idle = cutter.take<unsigned char>(rows);
  if (!backward()) return scratch;
  arrays.query_rows = cutter.take<float>(rows * settings_.key_row);
  arrays.d_out_rows = cutter.take<float>(rows * settings_.value_row);
  arrays.d_queries = cutter.take<float>(rows * problem_.head_dim);
  if (wants(Arg::d_k)) scratch.d_k = cutter.take<float>(kRangeKeys * settings_.key_row);
  if (wants(Arg::d_v)) scratch.d_v = cutter.take<float>(kRangeKeys * settings_.value_row);
  return scratch;
}

class StandardRun {
 public:
  StandardRun(const StandardPlan& plan, const Tensors& tensors, void* workspace)
      : plan_(plan),
        problem_(plan.problem_),
        kernels_(plan.kernels_),
        tensors_(tensors),
        addresses_(plan.problem_, tensors),
        workspace_(static_cast<char*>(workspace)),
        cutter_(workspace),
        matrices_(plan.cut_matrices(cutter_)),
        tiles_(plan.problem_, addresses_, plan.grid_, nullptr),
        ranges_(plan.problem_, addresses_, kRangeKeys, nullptr) {
    WorkspaceCutter measure(nullptr);
    plan.cut_worker(measure);
    worker_bytes_ = measure.used();
  }

  void forward() const {
    pass_over_tiles("scores", [&](const StandardTile& tile, const WorkerScratch& scratch) {
      kernels_.standard_products(plan_.settings_, tile, scratch.arrays);
    });
    pass_over_tiles("softmax", [&](const StandardTile& tile, const WorkerScratch&) {
      kernels_.standard_softmax(plan_.settings_, tile);
    });
    pass_over_tiles("out", [&](const StandardTile& tile, const WorkerScratch& scratch) {
      kernels_.standard_out(plan_.settings_, tile, scratch.arrays);
    });
    for_each_single(
        [&](const SinglePair& pair) { single_key_forward(problem_, tensors_, addresses_, pair); });
  }

  void backward() const {
    pass_over_tiles("scores", [&](const StandardTile& tile, const WorkerScratch& scratch) {
      kernels_.standard_products(plan_.settings_, tile, scratch.arrays);
    });
    pass_over_tiles("d_scores", [&](const StandardTile& tile, const WorkerScratch&) {
      kernels_.standard_d_scores(plan_.settings_, tile);
    });
    if (plan_.wants(Arg::d_q)) {
      pass_over_tiles("d_q", [&](StandardTile tile, const WorkerScratch& scratch) {
        tile.d_k = nullptr;
        tile.d_v = nullptr;
        zero_d_q(tile);
        kernels_.standard_d_q(plan_.settings_, tile, scratch.arrays);
        finish_d_q(tile, scratch);
      });
    }
    if (plan_.wants(Arg::d_k) || plan_.wants(Arg::d_v)) {
      pass("d_kv", ranges_.count(), [&](int64_t task, int worker) { attend_range(task, worker); });
    }
  }

 private:
  int workers() const { return std::min(plan_.workers_, num_threads()); }
  WorkerScratch scratch_of(int worker) const {
    WorkspaceCutter own(workspace_ + cutter_.used() + static_cast<size_t>(worker) * worker_bytes_);
    return plan_.cut_worker(own);
  }
  StandardTile tile_at(const TilePlace& place, const WorkerScratch& scratch) const;
  void mark_idle(const StandardTile& tile, unsigned char* idle) const;
  void zero_d_q(const StandardTile& tile) const;
  void finish_d_q(const StandardTile& tile, const WorkerScratch& scratch) const;
  void attend_range(int64_t task, int worker) const;
  void write_range(const KeyTask& keys, const WorkerScratch& scratch) const;
  SinglePair pair_of(const TilePlace& place, const StandardTile& tile, int row) const {
    return {place.sequence, place.head, place.first_row + row, tile.key_begin[row]};
  }

  template <class Body>
  void pass(const char* name, int64_t tasks, const Body& body) const {
    PassWatch* const watch = PassWatch::current();
    const double start = watch == nullptr ? 0 : watch->now();
    parallel_for(tasks, workers(), body);
    if (watch != nullptr) watch->add(name, watch->now() - start);
  }
  template <class Body>
  void pass_over_tiles(const char* name, const Body& body) const {
    pass(name, tiles_.count(), [&](int64_t task, int worker) {
      const WorkerScratch scratch = scratch_of(worker);
      body(tile_at(tiles_.place(task), scratch), scratch);
    });
  }
  template <class Body>
  void for_each_single(const Body& body) const {
    parallel_for(tiles_.count(), workers(), [&](int64_t task, int worker) {
      const WorkerScratch scratch = scratch_of(worker);
      const TilePlace place = tiles_.place(task);
      const StandardTile tile = tile_at(place, scratch);
      for (int row = 0; row < tile.rows; ++row) {
        if (is_single(tile, row)) body(pair_of(place, tile, row));
      }
    });
  }
  static bool is_single(const StandardTile& tile, int row) {
    return tile.key_end[row] - tile.key_begin[row] == 1;
  }

  const StandardPlan& plan_;
  const Problem& problem_;
  const Kernels& kernels_;
  const Tensors& tensors_;
  Addresses addresses_;
  char* workspace_;
  WorkspaceCutter cutter_;
  Matrices matrices_;
  TileTasks tiles_;
  KeyRanges ranges_;
  size_t worker_bytes_ = 0;
};

// In forward padding lanes are idle; in backward also rows that contribute nothing or apart.
void StandardRun::mark_idle(const StandardTile& tile, unsigned char* idle) const {
  for (int lane = 0; lane < plan_.grid_.rows; ++lane) {
    bool off = lane >= tile.rows;
    if (!off && plan_.backward()) {
      off = is_single(tile, lane) || tile.lse[lane] == -std::numeric_limits<float>::infinity();
    }
    idle[lane] = off ? 1 : 0;
  }
}

StandardTile StandardRun::tile_at(const TilePlace& place, const WorkerScratch& scratch) const {
  StandardTile tile;
  const Sequence& sequence = place.sequence;
  fill_tile(problem_, tensors_, addresses_, place, tile);
  fill_intervals(sequence.band, place, plan_.grid_, scratch.key_begin, scratch.key_end);
  tile.key_begin = scratch.key_begin;
  tile.key_end = scratch.key_end;
  tile.kv_len = problem_.kv_len;
  tile.range_end = problem_.kv_len;
  tile.out = addresses_.q_output(tensors_.out, sequence, place.head, place.first_row);
  float* const lse = addresses_.statistic(tensors_.lse, sequence, place.head, place.first_row);
  tile.lse = lse;
  tile.lse_out = lse;
  tile.d_out = addresses_.q_rows(tensors_.d_out, sequence, place.head, place.first_row);
  tile.d_lse = addresses_.statistic(tensors_.d_lse, sequence, place.head, place.first_row);
  const int64_t head = sequence.index * problem_.q_heads + place.head;
  if (plan_.wants(Arg::d_q)) {
    tile.d_q = addresses_.q_output(tensors_.d_q, sequence, place.head, place.first_row);
    if (matrices_.d_q != nullptr) {
      const int64_t row = head * problem_.q_len + place.first_row;
      tile.d_q = {matrices_.d_q + row * problem_.head_dim, problem_.head_dim};
    }
  }
  const int64_t index =
      head * plan_.grid_.tiles_of(problem_.q_len) + place.first_row / plan_.grid_.rows;
  const int64_t offset = index * problem_.kv_len * plan_.grid_.rows;
  tile.scores = matrices_.scores + offset;
  if (matrices_.d_scores != nullptr) tile.d_scores = matrices_.d_scores + offset;
  mark_idle(tile, scratch.idle);
  tile.idle = scratch.idle;
  return tile;
}

void StandardRun::zero_d_q(const StandardTile& tile) const {
  for (int row = 0; row < tile.rows; ++row) {
    std::fill_n(static_cast<float*>(tile.d_q.data) + row * tile.d_q.stride, problem_.head_dim,
                0.0f);
  }
}

// Rows that see one key, then elements.
void StandardRun::finish_d_q(const StandardTile& tile, const WorkerScratch&) const {
  const auto head = static_cast<int64_t>(tile.dropout_head);
  const TilePlace place = {addresses_.sequence(head / problem_.q_heads), head % problem_.q_heads,
                           tile.first_row, tile.rows};
  for (int row = 0; row < tile.rows; ++row) {
    if (!is_single(tile, row)) continue;
    SinglePairSums sums;
    sums.d_q = static_cast<float*>(tile.d_q.data) + row * tile.d_q.stride;
    single_key_backward(problem_, tensors_, addresses_, pair_of(place, tile, row), sums);
  }
  if (matrices_.d_q == nullptr) return;
  RowsToWrite rows;
  rows.floats = {tile.d_q.data, tile.d_q.stride};
  rows.rows = tile.rows;
  rows.dim = static_cast<int>(problem_.head_dim);
  rows.element = plan_.settings_.element;
  rows.to = addresses_.q_output(tensors_.d_q, place.sequence, place.head, place.first_row);
  kernels_.write_rows(rows);
}

void StandardRun::attend_range(int64_t task, int worker) const {
  const WorkerScratch scratch = scratch_of(worker);
  const KeyTask keys = ranges_.task(task);
  const int64_t head_row = plan_.settings_.key_row;
  const int64_t value_row = plan_.settings_.value_row;
  if (scratch.d_k != nullptr) std::fill_n(scratch.d_k, kRangeKeys * head_row, 0.0f);
  if (scratch.d_v != nullptr) std::fill_n(scratch.d_v, kRangeKeys * value_row, 0.0f);
  const int64_t group = problem_.q_heads / problem_.kv_heads;
  const int64_t tiles = plan_.grid_.tiles_of(problem_.q_len);
  const int64_t first = tiles_.first_of(keys.sequence.index) + keys.kv_head * group * tiles;
  for (int64_t i = first; i < first + group * tiles; ++i) {
    const TilePlace place = tiles_.place(i);
    StandardTile tile = tile_at(place, scratch);
    tile.range_begin = keys.begin;
    tile.range_end = keys.end;
    tile.d_q = {};
    tile.d_k = scratch.d_k;
    tile.d_v = scratch.d_v;
    kernels_.standard_d_kv(plan_.settings_, tile, scratch.arrays);
    for (int row = 0; row < tile.rows; ++row) {
      const int64_t key = tile.key_begin[row];
      if (!is_single(tile, row) || key < keys.begin || key >= keys.end) continue;
      SinglePairSums sums;
      if (tile.d_k != nullptr) sums.d_k = tile.d_k + (key - keys.begin) * head_row;
      if (tile.d_v != nullptr) sums.d_v = tile.d_v + (key - keys.begin) * value_row;
      single_key_backward(problem_, tensors_, addresses_, pair_of(place, tile, row), sums);
    }
  }
  write_range(keys, scratch);
}

void StandardRun::write_range(const KeyTask& keys, const WorkerScratch& scratch) const {
  RowsToWrite rows;
  rows.rows = keys.end - keys.begin;
  rows.element = plan_.settings_.element;
  if (scratch.d_k != nullptr) {
    rows.dim = static_cast<int>(problem_.head_dim);
    rows.floats = {scratch.d_k, plan_.settings_.key_row};
    rows.factor = static_cast<float>(problem_.scale);
    rows.to = addresses_.kv_output(tensors_.d_k, keys.sequence, keys.kv_head, keys.begin);
    kernels_.write_rows(rows);
  }
  if (scratch.d_v != nullptr) {
    rows.dim = static_cast<int>(problem_.value_dim);
    rows.floats = {scratch.d_v, plan_.settings_.value_row};
    rows.factor = 1;
    rows.to = addresses_.kv_output(tensors_.d_v, keys.sequence, keys.kv_head, keys.begin);
    kernels_.write_rows(rows);
  }
}

void StandardPlan::run(const Tensors& tensors, void* workspace, void* /*stream*/) const {
  const StandardRun run(*this, tensors, workspace);
  if (backward()) {
    run.backward();
  } else {
    run.forward();
  }
}

class StandardBackend final : public Backend {
 public:
  std::string_view name() const override { return "standard"; }
  bool only_by_name() const override { return true; }
  std::vector<std::string> why_not(const Problem& problem) const override {
    std::vector<std::string> reasons;
    const auto refuse = [&](bool unsupported, const char* reason) {
      if (unsupported) reasons.emplace_back(reason);
    };
    refuse(problem.device.type != DeviceType::cpu, "the tensors are not in CPU memory");
    refuse(problem.packed, "standard attention takes no packed batches");
    refuse(problem.options.softcap > 0, "standard attention has no softcap");
    refuse(problem.has(Arg::alibi_slopes), "standard attention has no ALiBi");
    refuse(problem.has(Arg::sink), "standard attention has no sink");
    refuse(problem.options.dropout > 0, "standard attention has no dropout");
    std::string reason;
    if (choose_kernels(reason) == nullptr) reasons.push_back(reason);
    return reasons;
  }
  std::unique_ptr<const BackendPlan> plan(const Problem& problem) const override {
    std::string reason;
    const Kernels* const kernels = choose_kernels(reason);
    if (kernels == nullptr) throw Error(Status::unsupported, "tilewise: " + reason);
    return std::make_unique<StandardPlan>(problem, *kernels);
  }
};

}  // namespace
}  // namespace cpu

const Backend& standard_backend() {
  static const cpu::StandardBackend backend;
  return backend;
}

}  // namespace tilewise
