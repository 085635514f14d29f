// Tilewise, the C++20 API: exact attention that never stores the q_len x kv_len matrix.
//
//   out = softmax(mask(softcap(scale * q k^T) - alibi)) v        and its gradients
//
// Two operations, forward and backward, and merge for partial results. Tensors are views: the
// library never owns, copies or converts what the caller passes. Every call checks its arguments
// before it touches memory and throws Error; the same checks guard the C ABI (tilewise.h).
// The rules behind each field are the rows of docs/contracts.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#if defined(__GNUC__)
#define TILEWISE_API __attribute__((visibility("default")))
#else
#define TILEWISE_API
#endif

namespace tilewise {

// Element types. q, k, v, out and their gradients share one of f32, bf16, f16; lse, slopes and
// sinks are f32; cu_seqlens are i32. The values are those of tw_dtype in tilewise.h.
enum class DType : int32_t { none = 0, f32 = 1, bf16 = 2, f16 = 3, i32 = 4 };

// Bytes of one element; 0 for none.
TILEWISE_API int64_t size_of(DType dtype);
// "fp32", "bf16", "fp16", "int32", "none".
TILEWISE_API std::string_view name_of(DType dtype);

// DLPack's device codes.
enum class DeviceType : int32_t { cpu = 1, cuda = 2 };
struct Device {
  DeviceType type = DeviceType::cpu;
  int32_t id = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr int kMaxDims = 4;

// A non-owning view of memory. Sizes and strides are in elements; the innermost stride must be 1.
// The stride of a dimension of size 1 is ignored. A default Tensor means "not given".
struct TILEWISE_API Tensor {
  void* data = nullptr;
  DType dtype = DType::none;
  Device device;
  int32_t ndim = 0;
  std::array<int64_t, kMaxDims> size{};
  std::array<int64_t, kMaxDims> stride{};

  bool given() const { return dtype != DType::none; }
  int64_t elements() const;

  // Row-major view of `sizes` (at most 4).
  static Tensor contiguous(const void* data, DType dtype, std::initializer_list<int64_t> sizes);
  // Memory [batch, len, heads, dim]: the order every attention tensor is viewed in.
  static Tensor bshd(const void* data, DType dtype, int64_t batch, int64_t len, int64_t heads,
                     int64_t dim);
  // Memory [batch, heads, len, dim], viewed as [batch, len, heads, dim].
  static Tensor bhsd(const void* data, DType dtype, int64_t batch, int64_t len, int64_t heads,
                     int64_t dim);
};

// Where key 0 stands against query 0: off in "key j is visible to row i iff j <= i + off".
enum class Alignment : int32_t {
  bottom_right = 0,  // off = kv_len - q_len: the last row sees the last key (FlashAttention >= 2.1)
  top_left = 1,      // off = 0: row 0 sees key 0 only (torch is_causal, cuDNN)
  at_offset = 2      // off = Mask::offset
};

// Which keys a row sees: i + off - left <= j <= i + off + right; -1 is unbounded on that side.
// A model card's "window W" counts W keys with the token itself: left = W - 1.
struct TILEWISE_API Mask {
  int64_t left = -1;
  int64_t right = -1;
  Alignment alignment = Alignment::bottom_right;
  int64_t offset = 0;  // used by Alignment::at_offset only

  static Mask none() { return {}; }
  static Mask causal(Alignment alignment = Alignment::bottom_right) {
    return {-1, 0, alignment, 0};
  }
  static Mask causal_at(int64_t offset) { return {-1, 0, Alignment::at_offset, offset}; }
  static Mask window(int64_t left, int64_t right) {
    return {left, right, Alignment::bottom_right, 0};
  }
  bool operator==(const Mask&) const = default;
};

enum class Determinism : int32_t { any = 0, bitwise = 1 };
enum class Direction : int32_t { forward = 0, backward = 1 };

// What the caller asks for besides tensors. Every option is honoured or refused, never ignored.
struct TILEWISE_API Options {
  Mask mask;
  std::optional<double> scale;  // default 1 / sqrt(head_dim); finite and > 0
  double softcap = 0;           // cap * tanh(s / cap) before the mask; 0 = off; never negative
  double dropout = 0;           // probability that a weight is dropped, in [0, 1)
  uint64_t seed = 0;            // Philox key of dropout
  uint32_t dropout_offset = 0;  // fourth Philox counter word: one value per call of a step
  Determinism determinism = Determinism::any;
  int64_t max_q_len = 0;   // packed batches: upper bound of a sequence's rows; 0 = total_q
  int64_t max_kv_len = 0;  // packed batches: the same for keys; 0 = total_kv
  std::string backend;     // "" chooses; else "cpu", "standard" or "reference"

  bool operator==(const Options&) const = default;
};

// The tensors of a call, by name. Fields that a direction does not use must stay empty.
// Dense: batch b, rows s or t, heads h (q_heads) or g (kv_heads, q_heads % kv_heads == 0).
// Packed (cu_seqlens given): q, out [total_q, h, d], k, v [total_kv, g, d], lse [h, total_q].
struct TILEWISE_API Tensors {
  Tensor q;              // [b, s, h, d]
  Tensor k;              // [b, t, g, d]
  Tensor v;              // [b, t, g, dv]
  Tensor out;            // [b, s, h, dv]  written by forward, read by backward
  Tensor lse;            // [b, h, s] f32  natural log; optional in forward, read by backward
  Tensor d_out;          // [b, s, h, dv]  backward
  Tensor d_lse;          // [b, h, s] f32  backward, optional
  Tensor d_q;            // [b, s, h, d]   backward: any subset of the four gradients
  Tensor d_k;            // [b, t, g, d]
  Tensor d_v;            // [b, t, g, dv]
  Tensor d_sink;         // [h] f32
  Tensor alibi_slopes;   // [h] or [b, h] f32: adds -slope * |i + off - j|
  Tensor sink;           // [h] f32: a logit that joins the denominator; -inf = none
  Tensor cu_seqlens_q;   // [b + 1] i32, starts at 0, non-decreasing, last <= total_q
  Tensor cu_seqlens_kv;  // [b + 1] i32, the same for keys
};

// Codes of Error and of the C ABI's tw_status.
enum class Status : int32_t {
  ok = 0,
  invalid_argument = 1,     // a rule of check() is broken; the message names the argument
  unsupported = 2,          // valid, but no backend (or not the named one) can do it
  workspace_too_small = 3,  // the message says how many bytes are needed
  out_of_memory = 4,
  device_error = 5,
  internal = 6
};
TILEWISE_API std::string_view name_of(Status status);

class TILEWISE_API Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  Status status() const { return status_; }

 private:
  Status status_;
};

struct Problem;
class BackendPlan;

// What was decided for one problem: backend, tiles, workspace. Immutable, cheap to copy, usable
// from any thread and for any tensors of the same shapes, strides and options.
class TILEWISE_API Plan {
 public:
  // Bytes of scratch that run() needs; contents before and after do not matter.
  size_t workspace_bytes() const;
  // Nothing is allocated here. workspace must be 64-byte aligned. stream: a CUstream on a GPU,
  // ignored on a CPU, where the call returns when the result is there.
  void run(const Tensors& tensors, void* workspace, size_t workspace_bytes,
           void* stream = nullptr) const;
  // Several lines of text: backend, instruction set, tiles, tasks, workspace.
  std::string describe() const;
  std::string_view backend() const;
  const Problem& problem() const { return *problem_; }

 private:
  friend Plan make_plan(Direction, const Tensors&, const Options&);
  Plan(std::shared_ptr<const Problem> problem, std::shared_ptr<const BackendPlan> decided)
      : problem_(std::move(problem)), decided_(std::move(decided)) {}
  std::shared_ptr<const Problem> problem_;
  std::shared_ptr<const BackendPlan> decided_;
};

// Checks, then asks the backends in order. Only shapes, dtypes, strides and devices of `tensors`
// are read, so data pointers may be null here. Throws Error.
TILEWISE_API Plan make_plan(Direction direction, const Tensors& tensors,
                            const Options& options = {});

// Each backend with its reasons against this call; no reasons = it would run.
struct BackendAnswer {
  std::string backend;
  std::vector<std::string> reasons;
};
TILEWISE_API std::vector<BackendAnswer> why_not(Direction direction, const Tensors& tensors,
                                                const Options& options = {});

// out (and lse, when given) from q, k, v. Plan + run with a plan cache; the workspace is allocated
// per call. Rows that see no key give out = 0, lse = -inf.
TILEWISE_API void forward(const Tensors& tensors, const Options& options = {},
                          void* stream = nullptr);

// Those of d_q, d_k, d_v, d_sink that are given, from q, k, v, out, lse, d_out (and d_lse). The
// options must be those of the forward call.
TILEWISE_API void backward(const Tensors& tensors, const Options& options = {},
                           void* stream = nullptr);

// A partial result over some of the keys: out [b, s, h, dv] f32 and lse [b, h, s] f32 (or packed).
struct Partial {
  Tensor out;
  Tensor lse;
};
// The result over all the keys of `parts`: weights exp(lse_p - max). out may be f32, bf16 or f16
// and may be the memory of one of the parts; lse is optional. Merging with an empty partial
// (out 0, lse -inf) returns the other one bitwise. CPU tensors.
TILEWISE_API void merge(std::span<const Partial> parts, const Tensor& out, const Tensor& lse = {});

// Threads of the CPU backend, counting the caller. Default: the cores this process may use.
// Results do not depend on it. 0 restores the default; a negative number is an error.
TILEWISE_API void set_num_threads(int threads);
TILEWISE_API int num_threads();

// Runs CPU work on the caller's own pool: run(context, workers, body, argument) must call
// body(argument, w) once for every w in [0, workers), in any order, on any threads, and return when
// all have returned. run == nullptr restores the built-in pool.
struct Executor {
  void* context = nullptr;
  void (*run)(void* context, int workers, void (*body)(void* argument, int worker),
              void* argument) = nullptr;
};
TILEWISE_API void set_executor(const Executor& executor);

// "0.1.0".
TILEWISE_API std::string_view version();

}  // namespace tilewise
