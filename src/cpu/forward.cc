// Forward on the CPU: a task is one query tile of one head, or of a group of heads (head_group.h);
// tasks share nothing but, where it pays, float copies of K and V (key_copies.h). Where tiles are
// few and keys many, a task is a part of the keys of a tile, and a second pass joins the parts.
#include <algorithm>
#include <string>

#include "cpu/head_group.h"
#include "cpu/key_copies.h"
#include "cpu/plans.h"
#include "cpu/single_key.h"
#include "cpu/threads.h"
#include "cpu/tiles.h"
#include "cpu/workspace.h"

namespace tilewise::cpu {

namespace {

// Panels that share a pass over K and V, as long as packed queries and outputs leave most of the
// second cache to the others: 192 KiB of 512 with vectors of 8 floats, twice that with 16.
constexpr int kMostPanels = 8;
constexpr int64_t kTileBytesOfLane = 24 * 1024;
constexpr int kBlockKeys = 128;
constexpr int kShortBlockKeys = 64;    // with narrow panels
constexpr int64_t kShortRows = 1024;   // up to here the work past a diagonal counts
constexpr int64_t kTasksOfThread = 8;  // tiles shrink until there are so many
constexpr int64_t kWaveTasksOfThread = 32;
constexpr int64_t kTasksInParts = 64;  // of a call, where there are as many keys
constexpr int64_t kPartKeys = 1024;    // at least, so that joining the parts costs little
constexpr int64_t kFewestSharing = 3;  // tiles of a head that pay for copies of its K and V

struct WorkerScratch {
  ForwardScratch arrays;
  int64_t* key_begin = nullptr;
  int64_t* key_end = nullptr;
  GroupScratch group;
};

// The parts of the workspace that all workers share.
struct Shared {
  int64_t* table = nullptr;  // [batch + 1] packed only
  float* copies = nullptr;
  float* parts = nullptr;  // maxima, sums, outs of each part of each tile
};

// What a call and all its tasks share.
struct Call {
  const Tensors& tensors;
  const Addresses& addresses;
};

class ForwardPlan final : public BackendPlan {
 public:
  ForwardPlan(const Problem& problem, const Kernels& kernels)
      : problem_(problem), kernels_(kernels), settings_(settings_of(problem)) {
    choose_kernel();
    choose_parts();
    choose_tiles();
    WorkspaceCutter cutter(nullptr);
    cut_shared(cutter);
    for (int i = 0; i < workers_; ++i) cut(cutter);
    workspace_bytes_ = cutter.used();
  }

  const Backend& backend() const override { return cpu_backend(); }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string describe() const override {
    return described("instruction set", kernels_.name) + described("products", products()) +
           described("query tile", std::to_string(grid_.rows) + " rows, " +
                                       std::to_string(settings_.panels) + " panels of " +
                                       std::to_string(grid_.width)) +
           described("query heads a tile", std::to_string(grid_.heads)) +
           described("keys a block", std::to_string(settings_.block_keys)) +
           described("copies of K and V", shares_copies_          ? "once for all tiles of a head"
                                          : settings_.copy_values ? "for each tile"
                                                                  : "none") +
           described("parts of the keys", std::to_string(parts_.count)) +
           described("tasks", (problem_.packed ? "at most " : "") +
                                  std::to_string(most_tasks(settings_.panels) * parts_.count)) +
           described("threads", std::to_string(workers_));
  }
  void run(const Tensors& tensors, void* workspace, void* stream) const override;

 private:
  // By the shape only, this and the next two: the widths differ in bits. Half of a panel is empty.
  bool groups_heads() const {
    return problem_.q_heads > problem_.kv_heads && 2 * problem_.q_len <= kernels_.narrow.width;
  }
  bool thin() const { return rows_of_heads(problem_.q_len) <= kernels_.thin.width; }
  bool narrow() const {
    if (problem_.q_len <= kShortRows && problem_.mask_rule().right >= 0) return true;
    const int64_t rows = rows_of_heads(problem_.q_len);
    return whole(rows, kernels_.narrow.width) * 16 < whole(rows, kernels_.wide.width) * 15;
  }
  int64_t rows_of_heads(int64_t q_len) const { return q_len * grid_.heads; }
  int64_t most_tasks(int panels) const {
    const int64_t rows = int64_t{panels} * grid_.width;
    const int64_t tiles =
        problem_.packed ? (rows_of_heads(problem_.total_q) + rows - 1) / rows + problem_.batch
                        : problem_.batch * ((rows_of_heads(problem_.q_len) + rows - 1) / rows);
    return tiles * (problem_.q_heads / grid_.heads);
  }
  bool takes_pairs() const { return kernels_.pairs != nullptr && problem_.dtype == DType::bf16; }
  std::string products() const {
    if (tiles_ != nullptr) return "on matrix tiles";
    if (problem_.dtype == DType::f32) return "in vectors";
    return takes_pairs() ? "in vectors, of bf16 pairs" : "in vectors, widened to float";
  }
  const ForwardKernels& vectors() const;
  void choose_kernel();
  void choose_tiles();
  void choose_parts();
  Shared cut_shared(WorkspaceCutter& cutter) const;
  WorkerScratch cut(WorkspaceCutter& cutter) const;
  ForwardTile tile_at(const Call& call, const TilePlace& place, const WorkerScratch& scratch) const;
  void hand_out(const Call& call, const TilePlace& place, const ForwardTile& tile) const;
  void run_tile(const Call& call, const TilePlace& place, const KeyCopies::Place& copies,
                const WorkerScratch& scratch) const;
  // scratch.arrays: of the part, or of the first.
  void run_part(const Call& call, const TilePlace& place, int64_t part,
                const WorkerScratch& scratch) const;
  void merge(const Call& call, const TilePlace& place, const WorkerScratch& scratch) const;
  bool in_parts() const { return parts_.count > 1; }
  // The arrays of a part, from `memory` on.
  void place_part(float* memory, ForwardScratch& arrays) const {
    arrays.maxima = memory;
    arrays.sums = memory + grid_.width;
    arrays.outs = memory + 2 * grid_.width;
  }

  Problem problem_;
  const Kernels& kernels_;
  Settings settings_;
  TileGrid grid_;
  const TileKernels* tiles_ = nullptr;       // null: in vectors
  const ForwardKernels* vectors_ = nullptr;  // null: on tiles
  ForwardOfTile* attend_ = nullptr;
  CopyKeys* copy_keys_ = nullptr;
  bool shares_copies_ = false;
  int64_t wave_heads_ = 1;
  KeyParts parts_;
  int64_t part_keys_ = 0;
  int workers_ = 1;
  size_t workspace_bytes_ = 0;
};

void ForwardPlan::choose_kernel() {
  const int64_t head_dim = problem_.head_dim;
  const int64_t value_dim = problem_.value_dim;
  settings_.block_keys = kBlockKeys;
  if (fits_matrix_tiles(problem_, settings_, kernels_)) {
    tiles_ = kernels_.tiles;
    attend_ = tiles_->forward_tile;
    copy_keys_ = tiles_->copy_keys;
    grid_.width = tiles_->rows;
    settings_.copy_keys = true;
    settings_.key_row = whole(head_dim, tiles_->columns) / 2;  // two words in a float's place
    settings_.value_row = whole(value_dim, tiles_->columns) / 2;
    return;
  }
  if (groups_heads()) grid_.heads = problem_.q_heads / problem_.kv_heads;
  const ForwardKernels& chosen = vectors();
  vectors_ = &chosen;
  attend_ = chosen.forward_tile;
  copy_keys_ = chosen.copy_keys;
  grid_.width = chosen.width;
  if (narrow()) settings_.block_keys = kShortBlockKeys;
  settings_.key_row = padded(head_dim, kernels_);
  settings_.value_row = whole(value_dim, chosen.strip_width);
  if (!takes_pairs()) return;
  settings_.copy_keys = settings_.copy_values = true;
  settings_.key_row = padded((head_dim + 1) / 2, kernels_);
  settings_.value_row /= 2;
}

const ForwardKernels& ForwardPlan::vectors() const {
  if (takes_pairs()) {
    return thin() ? kernels_.pairs->thin : narrow() ? kernels_.pairs->narrow : kernels_.pairs->wide;
  }
  return thin() ? kernels_.thin : narrow() ? kernels_.narrow : kernels_.wide;
}

// By the shape only: bits differ by the number of parts. Not for packed batches, whose results do
// not depend on the bounds of their lengths. A part has one panel.
void ForwardPlan::choose_parts() {
  if (problem_.packed || vectors_ == nullptr) return;
  if (grid_.heads == 1 && problem_.q_len > grid_.width) return;
  const int64_t tiles = std::max<int64_t>(1, most_tasks(1));
  const int64_t parts = std::min((kTasksInParts + tiles - 1) / tiles, problem_.kv_len / kPartKeys);
  if (parts < 2) return;
  part_keys_ = whole((problem_.kv_len + parts - 1) / parts, settings_.block_keys);
  parts_.count = (problem_.kv_len + part_keys_ - 1) / part_keys_;
  parts_.floats = int64_t{grid_.width} * (problem_.value_dim + 2);
}

// Rows of the result do not depend on how many panels a tile has, so threads may decide.
void ForwardPlan::choose_tiles() {
  const int width = grid_.width;
  const int64_t row_bytes = 4 * (problem_.head_dim + problem_.value_dim);
  const int64_t rows = kTileBytesOfLane * kernels_.lanes / row_bytes;
  const int64_t threads = std::max(1, num_threads());
  int panels = static_cast<int>(std::clamp<int64_t>(rows / width, 1, in_parts() ? 1 : kMostPanels));
  while (panels > 1 && most_tasks(panels) < kTasksOfThread * threads) panels /= 2;
  while (panels > 1 && (panels - 1) * width >= rows_of_heads(problem_.q_len)) --panels;
  settings_.panels = panels;
  grid_.rows = panels * width;
  workers_ = static_cast<int>(std::clamp<int64_t>(most_tasks(panels) * parts_.count, 1, threads));
  // Tiles that read one head's K and V, on the average.
  const int64_t tiles =
      most_tasks(panels) / std::max<int64_t>(1, problem_.batch * problem_.kv_heads);
  shares_copies_ = tiles_ != nullptr || (tiles >= kFewestSharing && !in_parts());
  // One thread never waits for another at the end of a wave.
  wave_heads_ = threads == 1 ? 1 : threads * kWaveTasksOfThread / std::max<int64_t>(tiles, 1) + 1;
  // Step 3 walks down columns of V; two panels already pay for a copy where they lie close.
  settings_.copy_values = settings_.copy_values || panels > 1;
}

Shared ForwardPlan::cut_shared(WorkspaceCutter& cutter) const {
  Shared shared;
  shared.table = cutter.take<int64_t>(problem_.packed ? problem_.batch + 1 : 0);
  if (shares_copies_) {
    shared.copies = cutter.take<float>(KeyCopies(problem_, settings_, wave_heads_).floats());
  }
  if (in_parts()) {
    shared.parts = cutter.take<float>(most_tasks(1) * parts_.count * parts_.floats);
  }
  return shared;
}

WorkerScratch ForwardPlan::cut(WorkspaceCutter& cutter) const {
  const int64_t head_dim = problem_.head_dim;
  const int64_t value_dim = problem_.value_dim;
  const int64_t rows = grid_.rows;
  const int64_t block = settings_.block_keys;
  WorkerScratch scratch;
  ForwardScratch& arrays = scratch.arrays;
  arrays.maxima = cutter.take<float>(rows);
  arrays.factors = cutter.take<float>(grid_.width);
  if (tiles_ != nullptr) {
    arrays.queries = cutter.take<float>(rows * settings_.key_row);
    arrays.outs = cutter.take<float>(rows * settings_.value_row * 2);
    arrays.sums = cutter.take<float>(2 * rows * tiles_->lanes);
    arrays.scores = cutter.take<float>(2 * block * grid_.width);
    arrays.weights = cutter.take<uint16_t>(2 * block * grid_.width);
  } else {
    arrays.queries = cutter.take<float>(rows * head_dim);
    arrays.outs = cutter.take<float>(rows * value_dim);
    arrays.sums = cutter.take<float>(rows);
    arrays.scores = cutter.take<float>(block * grid_.width);
  }
  if (settings_.dropout.active()) arrays.keep = cutter.take<float>(block * grid_.width);
  if (!shares_copies_ && settings_.copy_keys) {
    arrays.keys = cutter.take<float>(block * settings_.key_row);
  }
  if (!shares_copies_ && settings_.copy_values) {
    arrays.values = cutter.take<float>(block * settings_.value_row);
  }
  scratch.key_begin = cutter.take<int64_t>(rows);
  scratch.key_end = cutter.take<int64_t>(rows);
  if (grid_.heads > 1) scratch.group = cut_group(problem_, grid_, cutter);
  return scratch;
}

ForwardTile ForwardPlan::tile_at(const Call& call, const TilePlace& place,
                                 const WorkerScratch& scratch) const {
  ForwardTile tile;
  if (grid_.heads > 1) {
    HeadGroup(problem_, call.tensors, call.addresses, grid_).gather(place, scratch.group, tile);
  } else {
    fill_tile(problem_, call.tensors, call.addresses, place, tile);
    tile.out =
        call.addresses.q_output(call.tensors.out, place.sequence, place.head, place.first_row);
    tile.lse =
        call.addresses.statistic(call.tensors.lse, place.sequence, place.head, place.first_row);
  }
  fill_intervals(place.sequence.band, place, grid_, scratch.key_begin, scratch.key_end);
  tile.key_begin = scratch.key_begin;
  tile.key_end = scratch.key_end;
  return tile;
}

// What is left to do when a tile is finished.
void ForwardPlan::hand_out(const Call& call, const TilePlace& place,
                           const ForwardTile& tile) const {
  if (grid_.heads > 1) {
    HeadGroup(problem_, call.tensors, call.addresses, grid_).hand_out(place, tile);
  }
  if (settings_.has_sink) return;
  for (int lane = 0; lane < place.rows; ++lane) {
    if (tile.key_end[lane] - tile.key_begin[lane] != 1) continue;
    const HeadRow own = row_of(grid_, place, lane);
    single_key_forward(problem_, call.tensors, call.addresses,
                       {place.sequence, own.head, own.row, tile.key_begin[lane]});
  }
}

void ForwardPlan::run_tile(const Call& call, const TilePlace& place, const KeyCopies::Place& copies,
                           const WorkerScratch& scratch) const {
  ForwardTile tile = tile_at(call, place, scratch);
  tile.key_copy = copies.keys;
  tile.value_copy = copies.values;
  attend_(settings_, tile, scratch.arrays);
  hand_out(call, place, tile);
}

void ForwardPlan::run_part(const Call& call, const TilePlace& place, int64_t part,
                           const WorkerScratch& scratch) const {
  const ForwardTile tile = tile_at(call, place, scratch);
  const int64_t begin = part * part_keys_;
  const int64_t end = begin + part_keys_;
  for (int lane = 0; lane < grid_.width; ++lane) {
    scratch.key_begin[lane] = std::clamp(scratch.key_begin[lane], begin, end);
    scratch.key_end[lane] = std::clamp(scratch.key_end[lane], begin, end);
  }
  vectors_->attend_part(settings_, tile, scratch.arrays);
}

void ForwardPlan::merge(const Call& call, const TilePlace& place,
                        const WorkerScratch& scratch) const {
  const ForwardTile tile = tile_at(call, place, scratch);
  vectors_->merge_parts(settings_, tile, scratch.arrays, parts_);
  hand_out(call, place, tile);
}

void ForwardPlan::run(const Tensors& tensors, void* workspace, void* /*stream*/) const {
  const Addresses addresses(problem_, tensors);
  WorkspaceCutter cutter(workspace);
  const Shared shared = cut_shared(cutter);
  const TileTasks tasks(problem_, addresses, grid_, shared.table);
  char* const own_memory = static_cast<char*>(workspace) + cutter.used();
  WorkspaceCutter measure(nullptr);
  cut(measure);
  const size_t worker_bytes = measure.used();
  const int workers = std::min(workers_, num_threads());
  const Call call = {tensors, addresses};
  if (in_parts()) {
    const auto scratch_of = [&](int64_t part, int worker) {
      WorkspaceCutter own(own_memory + static_cast<size_t>(worker) * worker_bytes);
      WorkerScratch scratch = cut(own);
      place_part(shared.parts + part * parts_.floats, scratch.arrays);
      return scratch;
    };
    // The tiles of a kv head take the same part one after the other.
    const int64_t tiles = grid_.tiles_of(problem_.q_len);
    parallel_for(tasks.count() * parts_.count, workers, [&](int64_t task, int worker) {
      const int64_t part = task / tiles % parts_.count;
      const int64_t tile = task / tiles / parts_.count * tiles + task % tiles;
      run_part(call, tasks.place(tile), part, scratch_of(tile * parts_.count + part, worker));
    });
    parallel_for(tasks.count(), workers, [&](int64_t task, int worker) {
      merge(call, tasks.place(task), scratch_of(task * parts_.count, worker));
    });
    return;
  }
  const auto attend = [&](int64_t task, int worker, const KeyCopies* copies, const Wave& wave) {
    WorkspaceCutter own(own_memory + static_cast<size_t>(worker) * worker_bytes);
    const TilePlace place = tasks.place(task);
    KeyCopies::Place copied = {};
    if (copies != nullptr) {
      const int64_t kv_head = place.head / (problem_.q_heads / problem_.kv_heads);
      copied = copies->place(addresses, wave, place.sequence.index * problem_.kv_heads + kv_head,
                             shared.copies);
    }
    run_tile(call, place, copied, cut(own));
  };
  if (!shares_copies_) {
    parallel_for(tasks.count(), workers,
                 [&](int64_t task, int worker) { attend(task, worker, nullptr, {}); });
    return;
  }
  const KeyCopies copies(problem_, settings_, wave_heads_);
  for (Wave wave = copies.first_wave(addresses); wave.begin < wave.end;
       wave = copies.next_wave(addresses, wave)) {
    parallel_for(copies.tasks(wave), workers, [&](int64_t task, int) {
      copies.copy(tensors, addresses, wave, task, shared.copies, copy_keys_);
    });
    const int64_t first = tasks.first_of_kv_head(wave.begin);
    parallel_for(tasks.first_of_kv_head(wave.end) - first, workers,
                 [&](int64_t task, int worker) { attend(first + task, worker, &copies, wave); });
  }
}

}  // namespace

std::unique_ptr<const BackendPlan> plan_forward(const Problem& problem, const Kernels& kernels) {
  return std::make_unique<ForwardPlan>(problem, kernels);
}

}  // namespace tilewise::cpu
