// Problem: what the user asks, without pointers; and check(), the only place that holds the
// user-facing rules about shapes, dtypes, strides, devices and options (docs/contracts.md).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "semantics/mask.h"
#include "semantics/philox.h"
#include "tilewise/tilewise.hpp"

namespace tilewise {

// The tensors of a call, in the order of the fields of Tensors.
enum class Arg : int {
  q,
  k,
  v,
  out,
  lse,
  d_out,
  d_lse,
  d_q,
  d_k,
  d_v,
  d_sink,
  alibi_slopes,
  sink,
  cu_seqlens_q,
  cu_seqlens_kv,
  count
};
inline constexpr int kArgCount = static_cast<int>(Arg::count);

// "q", "d_out", "cu_seqlens_kv", ...: the name that error messages use.
std::string_view name_of(Arg arg);
// "tilewise::forward" or "tilewise::backward": the operation that error messages name.
std::string_view operation_of(Direction direction);
// Whether a call writes the argument: out and lse forward, the gradients backward.
bool is_written(Direction direction, Arg arg);
const Tensor& tensor_of(const Tensors& tensors, Arg arg);
Tensor& tensor_of(Tensors& tensors, Arg arg);

// The same views with the strides of dimensions of size 1, which callers may leave at any value,
// set to 0 (innermost: 1). Backends see only such tensors, so none of them multiplies a nonsense
// stride.
Tensors without_idle_strides(const Tensors& tensors);

// What the data of q, k, v and out start at multiples of: 16, 8, 4, 2 or 1 bytes. 16 where they
// have no data, as when planning ahead. GPU kernels differ in what they need.
int alignment_of(const Tensors& tensors);

struct Problem {
  Direction direction = Direction::forward;
  Options options;
  std::array<Tensor, kArgCount> layouts;  // data pointers are null
  // Read off the layouts and options.
  bool packed = false;
  DType dtype = DType::none;
  Device device;
  int64_t batch = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t q_len = 0;     // packed: upper bound of a sequence's rows
  int64_t kv_len = 0;    // packed: upper bound of a sequence's keys
  int64_t total_q = 0;   // rows of q over the batch
  int64_t total_kv = 0;  // rows of k over the batch
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  double scale = 0;
  int alignment = 16;  // alignment_of() the tensors it was made from

  const Tensor& layout(Arg arg) const { return layouts[static_cast<size_t>(arg)]; }
  bool has(Arg arg) const { return layout(arg).given(); }
  semantics::MaskRule mask_rule() const;
  semantics::Dropout dropout() const;
};

// Copies layouts and options, reads the sizes off them, then check()s. Throws Error.
Problem make_problem(Direction direction, const Tensors& tensors, const Options& options);

// Throws Error on the first broken rule.
void check(const Problem& problem);

// The rules that need pointers, checked before a plan runs: the tensors are those of the plan, data
// is there, outputs overlap nothing, cu_seqlens on the host are well formed. Throws Error.
void check_tensors(const Problem& problem, const Tensors& tensors);

}  // namespace tilewise
