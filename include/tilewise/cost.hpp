// The IO model: what attention costs on a machine before anything runs. Floating-point operations,
// bytes between slow and fast memory by tensor and by pass, and the time that each of three roofs
// (memory, multiply-adds, exponentials) allows, for standard attention and for tiled schedules.
//
//   cost(shape, {Schedule::tiled_q_outside}, machine_preset("h100", shape.dtype)).bound
//
// Pure arithmetic: no tensors, no backends. What is counted, what is not, and how the figures
// compare with the published ones: docs/io-model.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/tilewise.hpp"

namespace tilewise {

struct SequenceLengths {
  int64_t q_len = 0;
  int64_t kv_len = 0;
};

// The problem as far as its cost depends on it.
struct TILEWISE_API AttentionShape {
  int64_t batch = 1;
  int64_t q_heads = 1;
  int64_t kv_heads = 1;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  DType dtype = DType::f16;
  Mask mask;
  std::vector<SequenceLengths> sequences;  // a packed batch; then batch, q_len, kv_len are not read
};

// A machine as three roofs and a fast memory. Fill it with measured numbers or take a preset.
struct TILEWISE_API MachineRoofs {
  std::string name;
  double flops_per_s = 0;       // multiply-adds of the dtype, two operations each
  double bytes_per_s = 0;       // slow memory
  double exps_per_s = 0;        // 0: exponentials are taken as free
  double fast_bytes = 0;        // fast memory of one core
  int64_t cores = 1;            // that each have fast_bytes
  double cache_bytes = 0;       // that all cores share, before slow memory; 0: none
  double fast_bytes_per_s = 0;  // of all cores together; 0: not known; shown only

  // Operations that must be done with each byte before multiply-adds are the limit.
  double balance() const { return bytes_per_s > 0 ? flops_per_s / bytes_per_s : 0; }
};

// "example" (the illustrative 300 TFLOP/s with 2 TB/s and room for 65,536 16-bit numbers), "a100",
// "h100", "h200" (SXM data sheets, dense rates).
TILEWISE_API std::vector<std::string> machine_presets();
// Throws Error(invalid_argument) for other names.
TILEWISE_API MachineRoofs machine_preset(std::string_view name, DType dtype);

enum class Schedule : int32_t {
  standard = 0,           // S = q k^T, P = softmax(S), out = P v: three passes, S and P in memory
  tiled_kv_outside = 1,   // FlashAttention: K and V once; q and out again for each key tile
  tiled_q_outside = 2,    // FlashAttention-2: q and out once; K and V again for each query tile
  decode = 3,             // few rows: a group's heads share one read of K and V, split over cores
  standard_backward = 4,  // P kept from forward; dP and dS in memory
  recompute_backward = 5  // P again from q, k and lse, tile by tile, K and V outside
};
TILEWISE_API std::string_view name_of(Schedule schedule);

// full: scores, partial outputs and statistics are fp32, and m, l and lse count as traffic.
// simple: every number takes size_of(dtype), m, l and lse are left out, and there is no cache: the
// published figures.
enum class Accounting : int32_t { full = 0, simple = 1 };

struct TILEWISE_API ScheduleChoice {
  Schedule schedule = Schedule::tiled_q_outside;
  Accounting accounting = Accounting::full;
  int64_t tile_rows = 0;  // 0: from the machine's fast memory
  int64_t tile_keys = 0;
  DType matrix_dtype = DType::none;  // of S, P and their gradients in memory; none: the shape's
};

// Bytes of one tensor in one pass: between slow and fast memory, and what the cache spares.
struct TILEWISE_API Traffic {
  std::string pass;
  std::string tensor;
  double read_bytes = 0;
  double write_bytes = 0;
  double cached_bytes = 0;
};

// Arithmetic of one pass.
struct TILEWISE_API Work {
  std::string pass;
  double flops = 0;
  double exps = 0;
};

enum class Bound : int32_t { memory = 0, compute = 1, exponentials = 2 };
TILEWISE_API std::string_view name_of(Bound bound);  // "memory", "compute", "exp"

struct TILEWISE_API Cost {
  int64_t tile_rows = 0;  // 0 where nothing is tiled
  int64_t tile_keys = 0;
  // How often what is inside the loop passes by: key tiles or query tiles of the longest sequence
  // (decode: the parts it is split into, standard: three).
  int64_t passes = 0;
  // Over the batch and all query heads.
  double all_pairs = 0;       // entries of the score matrices
  double visible_pairs = 0;   // that the mask shows
  double executed_pairs = 0;  // that the schedule computes: whole tiles, or the whole matrix
  double useful_flops = 0;    // of the products that the result needs, visible pairs only
  double executed_flops = 0;  // of all products, masked pairs and recomputation too
  double exps = 0;
  std::vector<Work> work;  // the passes in order
  std::vector<Traffic> traffic;
  double read_bytes = 0;
  double write_bytes = 0;
  double cached_bytes = 0;       // that the cache spares
  double compulsory_bytes = 0;   // every input and output once
  double matrix_bytes = 0;       // of one score matrix over batch and heads
  double extra_bytes = 0;        // slow memory besides inputs and outputs
  double working_set_bytes = 0;  // fast memory that one core needs
  double intensity = 0;          // executed_flops a byte
  double memory_s = 0;
  double compute_s = 0;
  double exp_s = 0;
  Bound bound = Bound::memory;  // the largest of the three
  // The passes one after another, each as long as the largest of its own three.
  double passes_s = 0;

  double bytes() const { return read_bytes + write_bytes; }
  // As if the three overlapped perfectly.
  double seconds() const {
    const double two = memory_s > compute_s ? memory_s : compute_s;
    return two > exp_s ? two : exp_s;
  }
};

// Throws Error(invalid_argument) when a size is negative, a dim or rate is not positive, or heads
// do not divide.
TILEWISE_API Cost cost(const AttentionShape& shape, const ScheduleChoice& choice,
                       const MachineRoofs& machine);

// Fast memory of one core for the blocks of a tile: forward one each of q, k, v, scores and out;
// backward also d_out, the second score block, and the sums of d_q, d_k and d_v.
TILEWISE_API double working_set_bytes(const AttentionShape& shape, const ScheduleChoice& choice);
// The most query rows that fit beside choice.tile_keys keys; 0: none.
TILEWISE_API int64_t largest_tile_rows(const AttentionShape& shape, const ScheduleChoice& choice,
                                       double fast_bytes);

// Operations a byte of the softmax pass alone: subtract, exponentiate, add, divide and the maximum
// are five, for one number read and one written.
TILEWISE_API double softmax_intensity(DType dtype);

// Useful operations of one transformer layer besides attention, forward, over all rows of q: the
// projections to q, k, v and back, and a gated feed-forward of three hidden x ffn matrices.
TILEWISE_API double layer_flops(const AttentionShape& shape, int64_t hidden, int64_t ffn);

}  // namespace tilewise
