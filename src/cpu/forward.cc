// Forward on the CPU: a task is one query tile of one head; tasks share nothing.
#include <algorithm>
#include <string>

#include "cpu/plans.h"
#include "cpu/single_key.h"
#include "cpu/threads.h"
#include "cpu/tiles.h"
#include "cpu/workspace.h"

namespace tilewise::cpu {

namespace {

// Rows that share a pass over K and V: enough to pay for fetching rows of interleaved heads, as
// long as packed queries and outputs take no more than 192 KiB of the second cache.
constexpr int64_t kMostRows = 192;
constexpr int64_t kTileBytes = 192 * 1024;
constexpr int kBlockKeys = 128;
constexpr int64_t kEnoughTasks = 32;  // tiles shrink until there are so many

struct WorkerScratch {
  ForwardScratch arrays;
  int64_t* key_begin = nullptr;
  int64_t* key_end = nullptr;
};

class ForwardPlan final : public BackendPlan {
 public:
  ForwardPlan(const Problem& problem, const Kernels& kernels)
      : problem_(problem), kernels_(kernels), settings_(settings_of(problem)) {
    // From the shape only, so that results do not depend on the machine's threads.
    const int64_t row_bytes = 4 * (problem.head_dim + problem.value_dim);
    const int64_t rows = std::min(kMostRows, kTileBytes / row_bytes);
    int panels = static_cast<int>(std::max<int64_t>(1, rows / kernels.width));
    const auto tasks = [&] { return most_tasks(panels); };
    while (panels > 1 && tasks() < kEnoughTasks) panels /= 2;
    while (panels > 1 && (panels - 1) * kernels.width >= problem.q_len) --panels;
    settings_.panels = panels;
    settings_.block_keys = kBlockKeys;
    // Step 3 walks down columns of V; two panels already pay for a copy where they lie close.
    settings_.copy_values = settings_.copy_values || panels > 1;
    grid_ = {panels * kernels.width, kernels.width};
    workers_ = static_cast<int>(std::clamp<int64_t>(tasks(), 1, std::max(1, num_threads())));
    WorkspaceCutter cutter(nullptr);
    cut_table(cutter);
    for (int i = 0; i < workers_; ++i) cut(cutter);
    workspace_bytes_ = cutter.used();
  }

  const Backend& backend() const override { return cpu_backend(); }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string describe() const override {
    return described("instruction set", kernels_.name) +
           described("query tile", std::to_string(grid_.rows) + " rows, " +
                                       std::to_string(settings_.panels) + " panels of " +
                                       std::to_string(grid_.width)) +
           described("keys a block", std::to_string(settings_.block_keys)) +
           described("tasks", (problem_.packed ? "at most " : "") +
                                  std::to_string(most_tasks(settings_.panels))) +
           described("threads", std::to_string(workers_));
  }
  void run(const Tensors& tensors, void* workspace, void* stream) const override;

 private:
  int64_t most_tasks(int panels) const {
    const int64_t rows = int64_t{panels} * kernels_.width;
    const int64_t tiles = problem_.packed ? (problem_.total_q + rows - 1) / rows + problem_.batch
                                          : problem_.batch * ((problem_.q_len + rows - 1) / rows);
    return tiles * problem_.q_heads;
  }
  int64_t* cut_table(WorkspaceCutter& cutter) const {
    return cutter.take<int64_t>(problem_.packed ? problem_.batch + 1 : 0);
  }
  WorkerScratch cut(WorkspaceCutter& cutter) const;
  void run_tile(const Tensors& tensors, const Addresses& addresses, const TilePlace& place,
                const WorkerScratch& scratch) const;

  Problem problem_;
  const Kernels& kernels_;
  Settings settings_;
  TileGrid grid_;
  int workers_ = 1;
  size_t workspace_bytes_ = 0;
};

WorkerScratch ForwardPlan::cut(WorkspaceCutter& cutter) const {
  const int64_t head_dim = problem_.head_dim;
  const int64_t value_dim = problem_.value_dim;
  const int64_t rows = grid_.rows;
  const int64_t block = settings_.block_keys;
  WorkerScratch scratch;
  ForwardScratch& arrays = scratch.arrays;
  arrays.queries = cutter.take<float>(rows * head_dim);
  arrays.outs = cutter.take<float>(rows * value_dim);
  arrays.maxima = cutter.take<float>(rows);
  arrays.sums = cutter.take<float>(rows);
  arrays.factors = cutter.take<float>(grid_.width);
  arrays.scores = cutter.take<float>(block * grid_.width);
  if (settings_.dropout.active()) arrays.keep = cutter.take<float>(block * grid_.width);
  if (settings_.copy_keys) arrays.keys = cutter.take<float>(block * settings_.key_row);
  if (settings_.copy_values) {
    arrays.values = cutter.take<float>(block * settings_.value_row);
  }
  scratch.key_begin = cutter.take<int64_t>(rows);
  scratch.key_end = cutter.take<int64_t>(rows);
  return scratch;
}

void ForwardPlan::run_tile(const Tensors& tensors, const Addresses& addresses,
                           const TilePlace& place, const WorkerScratch& scratch) const {
  ForwardTile tile;
  fill_tile(problem_, tensors, addresses, place, tile);
  fill_intervals(place.sequence.band, place, grid_, scratch.key_begin, scratch.key_end);
  tile.key_begin = scratch.key_begin;
  tile.key_end = scratch.key_end;
  tile.out = addresses.q_output(tensors.out, place.sequence, place.head, place.first_row);
  tile.lse = addresses.statistic(tensors.lse, place.sequence, place.head, place.first_row);
  kernels_.forward_tile(settings_, tile, scratch.arrays);
  if (settings_.has_sink) return;
  for (int row = 0; row < place.rows; ++row) {
    if (tile.key_end[row] - tile.key_begin[row] != 1) continue;
    single_key_forward(problem_, tensors, addresses,
                       {place.sequence, place.head, place.first_row + row, tile.key_begin[row]});
  }
}

void ForwardPlan::run(const Tensors& tensors, void* workspace, void* /*stream*/) const {
  const Addresses addresses(problem_, tensors);
  WorkspaceCutter cutter(workspace);
  const TileTasks tasks(problem_, addresses, grid_, cut_table(cutter));
  const size_t first = cutter.used();
  WorkspaceCutter measure(nullptr);
  cut(measure);
  const size_t worker_bytes = measure.used();
  parallel_for(tasks.count(), std::min(workers_, num_threads()), [&](int64_t task, int worker) {
    WorkspaceCutter own(static_cast<char*>(workspace) + first +
                        static_cast<size_t>(worker) * worker_bytes);
    run_tile(tensors, addresses, tasks.place(task), cut(own));
  });
}

}  // namespace

std::unique_ptr<const BackendPlan> plan_forward(const Problem& problem, const Kernels& kernels) {
  return std::make_unique<ForwardPlan>(problem, kernels);
}

}  // namespace tilewise::cpu
