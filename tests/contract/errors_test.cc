// Contract row "errors": a bad call changes nothing, and its message names the operation, the
// argument, what it got, what was expected and where that expectation comes from.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

struct Call {
  Tensors tensors;
  Options options;
};

struct BadCall {
  void (*spoil)(Call& call);
  const char* message;  // after "tilewise::forward: " or "tilewise::backward: "
};

constexpr const char* kDense = "b=2 hq=4 hkv=2 q=5 kv=7 d=8 dv=6 dir=bwd sink=1 alibi=1 dlse=1";
constexpr const char* kPacked = "hq=4 hkv=2 qlens=5,3 kvlens=7,1 d=8 dv=6 dir=bwd alibi=2";

// Spoils a good call, expects the message, and that no output changed.
void expect_refused(const char* text, Direction direction, const BadCall& bad) {
  CaseTensors tensors(parse_case(text));
  const bool forwards = direction == Direction::forward;
  Call call{forwards ? tensors.forward() : tensors.backward(), tensors.options()};
  call.options.backend = "reference";
  bad.spoil(call);
  const std::vector<std::byte> before = tensors.output_bytes();
  const std::string message =
      std::string(forwards ? "tilewise::forward: " : "tilewise::backward: ") + bad.message;
  try {
    forwards ? forward(call.tensors, call.options) : backward(call.tensors, call.options);
    ADD_FAILURE() << "accepted, expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), message);
    EXPECT_EQ(error.status(), Status::invalid_argument);
  }
  EXPECT_EQ(tensors.output_bytes(), before) << message;
}

constexpr BadCall kBadForward[] = {
    // presence
    {[](Call& c) { c.tensors.q = {}; }, "q is not given, expected a tensor"},
    {[](Call& c) { c.tensors.k = {}; }, "k is not given, expected a tensor"},
    {[](Call& c) { c.tensors.v = {}; }, "v is not given, expected a tensor"},
    {[](Call& c) { c.tensors.out = {}; }, "out is not given, expected a tensor"},
    {[](Call& c) { c.tensors.d_out = c.tensors.out; },
     "d_out is given, expected nothing (from dir=fwd)"},
    {[](Call& c) { c.tensors.d_q = c.tensors.q; }, "d_q is given, expected nothing (from dir=fwd)"},
    {[](Call& c) { c.tensors.cu_seqlens_q = Tensor::contiguous(nullptr, DType::i32, {3}); },
     "cu_seqlens_kv is not given, expected a tensor (from cu_seqlens_q is given)"},
    // dtypes
    {[](Call& c) { c.tensors.q.dtype = DType::i32; },
     "q.dtype is int32, expected fp32, bf16 or fp16"},
    {[](Call& c) { c.tensors.k.dtype = DType::bf16; },
     "k.dtype is bf16, expected fp32 (from q.dtype)"},
    {[](Call& c) { c.tensors.v.dtype = DType::f16; },
     "v.dtype is fp16, expected fp32 (from q.dtype)"},
    {[](Call& c) { c.tensors.out.dtype = DType::bf16; },
     "out.dtype is bf16, expected fp32 (from q.dtype)"},
    {[](Call& c) { c.tensors.lse.dtype = DType::bf16; }, "lse.dtype is bf16, expected fp32"},
    {[](Call& c) { c.tensors.sink.dtype = DType::f16; }, "sink.dtype is fp16, expected fp32"},
    {[](Call& c) { c.tensors.alibi_slopes.dtype = DType::bf16; },
     "alibi_slopes.dtype is bf16, expected fp32"},
    // devices
    {[](Call& c) {
       c.tensors.v.device = {DeviceType::cuda, 1};
     },
     "v.device is cuda:1, expected cpu (from q.device)"},
    // shapes
    {[](Call& c) { c.tensors.q.ndim = 3; },
     "q.ndim is 3, expected 4: [batch, len, heads, dim] (from cu_seqlens are not given)"},
    {[](Call& c) { c.tensors.k.size[3] = 9; }, "k.size[3] is 9, expected 8 (from q.size[3])"},
    {[](Call& c) { c.tensors.k.size[0] = 3; }, "k.size[0] is 3, expected 2 (from q.size[0])"},
    {[](Call& c) { c.tensors.v.size[1] = 8; }, "v.size[1] is 8, expected 7 (from k.size[1])"},
    {[](Call& c) { c.tensors.v.size[2] = 4; }, "v.size[2] is 4, expected 2 (from k.size[2])"},
    {[](Call& c) { c.tensors.out.size[3] = 8; }, "out.size[3] is 8, expected 6 (from v.size[3])"},
    {[](Call& c) { c.tensors.out.size[1] = 7; }, "out.size[1] is 7, expected 5 (from q.size[1])"},
    {[](Call& c) { c.tensors.lse.size[1] = 5; }, "lse.size[1] is 5, expected 4 (from q.size[2])"},
    {[](Call& c) { c.tensors.lse.ndim = 2; }, "lse.ndim is 2, expected 3 (from a dense batch)"},
    {[](Call& c) { c.tensors.sink.size[0] = 2; }, "sink.size[0] is 2, expected 4 (from q.size[2])"},
    {[](Call& c) { c.tensors.alibi_slopes.size[0] = 2; },
     "alibi_slopes.size[0] is 2, expected 4 (from q.size[2])"},
    {[](Call& c) { c.tensors.q.size[1] = -1; }, "q.size[1] is -1, expected 0 or more"},
    {[](Call& c) { c.tensors.q.size[3] = 0; }, "q.size[3] is 0, expected 1..256"},
    {[](Call& c) { c.tensors.q.size[3] = 257; }, "q.size[3] is 257, expected 1..256"},
    {[](Call& c) { c.tensors.v.size[3] = 0; }, "v.size[3] is 0, expected 1..256"},
    {[](Call& c) { c.tensors.q.size[2] = 5; },
     "q_heads is 5, expected a multiple of kv_heads 2 (from k.size[2])"},
    // strides
    {[](Call& c) { c.tensors.q.stride[3] = 2; },
     "q.stride[3] is 2, expected 1 (from the innermost dimension must be contiguous)"},
    {[](Call& c) { c.tensors.v.stride[3] = 0; },
     "v.stride[3] is 0, expected 1 (from the innermost dimension must be contiguous)"},
    {[](Call& c) { c.tensors.k.stride[1] = -16; }, "k.stride[1] is -16, expected 0 or more"},
    {[](Call& c) { c.tensors.k.stride[1] = int64_t{1} << 59; },
     "k.stride[1] is 576460752303423488, expected offsets below 2^60 elements (from k.size[1] is "
     "7)"},
    {[](Call& c) { c.tensors.out.stride[0] = 0; },
     "out.stride is overlapping itself, expected strides that give each element its own memory "
     "(from it is an output)"},
    {[](Call& c) { c.tensors.out.stride[1] = 5; },
     "out.stride is overlapping itself, expected strides that give each element its own memory "
     "(from it is an output)"},
    // options
    {[](Call& c) { c.options.mask.left = -2; }, "mask.left is -2, expected -1 (unbounded) or more"},
    {[](Call& c) { c.options.mask.right = -3; },
     "mask.right is -3, expected -1 (unbounded) or more"},
    {[](Call& c) { c.options.mask.alignment = static_cast<Alignment>(3); },
     "mask.alignment is 3, expected bottom_right, top_left or at_offset"},
    {[](Call& c) { c.options.mask.offset = 2; },
     "mask.offset is 2, expected 0 (from mask.alignment is not at_offset)"},
    {[](Call& c) { c.options.scale = 0; }, "scale is 0, expected finite and > 0"},
    {[](Call& c) { c.options.scale = -1; }, "scale is -1, expected finite and > 0"},
    {[](Call& c) { c.options.scale = std::numeric_limits<double>::quiet_NaN(); },
     "scale is nan, expected finite and > 0"},
    {[](Call& c) { c.options.scale = std::numeric_limits<double>::infinity(); },
     "scale is inf, expected finite and > 0"},
    {[](Call& c) { c.options.softcap = -2; }, "softcap is -2, expected finite and >= 0"},
    {[](Call& c) { c.options.softcap = std::numeric_limits<double>::quiet_NaN(); },
     "softcap is nan, expected finite and >= 0"},
    {[](Call& c) { c.options.dropout = 1; }, "dropout is 1, expected in [0, 1)"},
    {[](Call& c) { c.options.dropout = -0.1; }, "dropout is -0.1, expected in [0, 1)"},
    {[](Call& c) { c.options.dropout = std::numeric_limits<double>::quiet_NaN(); },
     "dropout is nan, expected in [0, 1)"},
    {[](Call& c) { c.options.max_q_len = 5; },
     "max_q_len is 5, expected 0 (from the batch is not packed)"},
    {[](Call& c) { c.options.max_kv_len = -5; }, "max_kv_len is -5, expected 0 or more"},
    // memory
    {[](Call& c) { c.tensors.q.data = nullptr; }, "q.data is null, expected a pointer"},
    {[](Call& c) { c.tensors.lse.data = nullptr; }, "lse.data is null, expected a pointer"},
    {[](Call& c) { c.tensors.k.data = static_cast<char*>(c.tensors.k.data) - 2; },
     "k.data is not aligned to its elements, expected a multiple of 4 bytes (from k.dtype)"},
    {[](Call& c) { c.tensors.out.data = c.tensors.v.data; },
     "out is overlapping v, expected memory of its own (from it is an output)"},
    {[](Call& c) { c.tensors.lse.data = static_cast<char*>(c.tensors.out.data) + 64; },
     "out is overlapping lse, expected memory of its own (from it is an output)"},
};

TEST(Errors, OfForward) {
  for (const BadCall& bad : kBadForward) expect_refused(kDense, Direction::forward, bad);
}

constexpr BadCall kBadBackward[] = {
    {[](Call& c) { c.tensors.lse = {}; }, "lse is not given, expected a tensor (from dir=bwd)"},
    {[](Call& c) { c.tensors.d_out = {}; }, "d_out is not given, expected a tensor (from dir=bwd)"},
    {[](Call& c) { c.tensors.d_q = c.tensors.d_k = c.tensors.d_v = c.tensors.d_sink = {}; },
     "gradient is not given, expected at least one of d_q, d_k, d_v, d_sink"},
    {[](Call& c) { c.tensors.sink = {}; },
     "sink is not given, expected a tensor (from d_sink is given)"},
    {[](Call& c) { c.tensors.d_k.dtype = DType::bf16; },
     "d_k.dtype is bf16, expected fp32 (from q.dtype)"},
    {[](Call& c) { c.tensors.d_lse.dtype = DType::f16; }, "d_lse.dtype is fp16, expected fp32"},
    {[](Call& c) { c.tensors.d_q.size[3] = 6; }, "d_q.size[3] is 6, expected 8 (from q.size[3])"},
    {[](Call& c) { c.tensors.d_v.size[2] = 4; }, "d_v.size[2] is 4, expected 2 (from k.size[2])"},
    {[](Call& c) { c.tensors.d_out.size[3] = 8; },
     "d_out.size[3] is 8, expected 6 (from v.size[3])"},
    {[](Call& c) { c.tensors.d_sink.size[0] = 1; },
     "d_sink.size[0] is 1, expected 4 (from q.size[2])"},
    {[](Call& c) { c.tensors.d_out.stride[3] = 2; },
     "d_out.stride[3] is 2, expected 1 (from the innermost dimension must be contiguous)"},
    {[](Call& c) { c.tensors.d_k.stride[2] = 0; },
     "d_k.stride is overlapping itself, expected strides that give each element its own memory "
     "(from it is an output)"},
    {[](Call& c) { c.tensors.d_q.data = c.tensors.q.data; },
     "d_q is overlapping q, expected memory of its own (from it is an output)"},
    {[](Call& c) { c.tensors.d_k.data = c.tensors.d_v.data; },
     "d_k is overlapping d_v, expected memory of its own (from it is an output)"},
    {[](Call& c) { c.tensors.d_v.data = nullptr; }, "d_v.data is null, expected a pointer"},
    {[](Call& c) { c.options.determinism = static_cast<Determinism>(7); },
     "determinism is 7, expected any or bitwise"},
};

TEST(Errors, OfBackward) {
  for (const BadCall& bad : kBadBackward) expect_refused(kDense, Direction::backward, bad);
}

int32_t* offsets_of(Tensor& tensor) { return static_cast<int32_t*>(tensor.data); }

constexpr BadCall kBadPacked[] = {
    {[](Call& c) { c.tensors.cu_seqlens_kv = {}; },
     "cu_seqlens_kv is not given, expected a tensor (from cu_seqlens_q is given)"},
    {[](Call& c) { c.tensors.cu_seqlens_q.dtype = DType::f32; },
     "cu_seqlens_q.dtype is fp32, expected int32"},
    {[](Call& c) { c.tensors.cu_seqlens_kv.size[0] = 2; },
     "cu_seqlens_kv.size[0] is 2, expected 3 (from cu_seqlens_q.size[0])"},
    {[](Call& c) { c.tensors.cu_seqlens_q.size[0] = 0; },
     "cu_seqlens_q is empty, expected a vector of batch + 1 offsets"},
    {[](Call& c) { c.tensors.q.ndim = 4; },
     "q.ndim is 4, expected 3: [total, heads, dim] (from cu_seqlens are given)"},
    {[](Call& c) { c.tensors.k.size[2] = 9; }, "k.size[2] is 9, expected 8 (from q.size[2])"},
    {[](Call& c) { c.tensors.v.size[0] = 3; }, "v.size[0] is 3, expected 11 (from k.size[0])"},
    {[](Call& c) { c.tensors.lse.size[1] = 8; }, "lse.size[1] is 8, expected 11 (from q.size[0])"},
    {[](Call& c) { c.tensors.alibi_slopes.size[0] = 3; },
     "alibi_slopes.size[0] is 3, expected 2 (from cu_seqlens_q)"},
    {[](Call& c) { offsets_of(c.tensors.cu_seqlens_q)[0] = 1; },
     "cu_seqlens_q[0] is 1, expected 0"},
    {[](Call& c) { offsets_of(c.tensors.cu_seqlens_q)[1] = -4; },
     "cu_seqlens_q[1] is -4, expected 0 or more (from cu_seqlens_q[0])"},
    {[](Call& c) { offsets_of(c.tensors.cu_seqlens_kv)[2] = 3; },
     "cu_seqlens_kv[2] is 3, expected 7 or more (from cu_seqlens_kv[1])"},
    {[](Call& c) { offsets_of(c.tensors.cu_seqlens_kv)[2] = 12; },
     "cu_seqlens_kv[2] is 12, expected at most 11 (from k.size[0])"},
    {[](Call& c) { c.options.max_q_len = 4; },
     "cu_seqlens_q[1] is 5, expected at most 4 (from max_q_len)"},
    {[](Call& c) { offsets_of(c.tensors.cu_seqlens_q)[2] = INT32_MAX; },
     "cu_seqlens_q[2] is 2147483647, expected at most 10 (from max_q_len)"},
};

TEST(Errors, OfPackedBatches) {
  for (const BadCall& bad : kBadPacked) expect_refused(kPacked, Direction::forward, bad);
}

TEST(Errors, UnknownBackendNamesTheKnownOnes) {
  CaseTensors tensors(parse_case("q=4 d=4"));
  Options options = tensors.options();
  options.backend = "abacus";
  try {
    forward(tensors.forward(), options);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("tilewise::forward: backend is \"abacus\", expected one of "));
    for (const char* name : {"cpu", "reference"}) EXPECT_NE(text.find(name), std::string::npos);
  }
}

TEST(Errors, UnknownIsaNamesTheKnownOnes) {
  CaseTensors tensors(parse_case("q=4 d=4"));
  const ChosenIsa chosen({"cpu", "sse2"});
  Options options = tensors.options();
  options.backend = "cpu";
  try {
    forward(tensors.forward(), options);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* word : {"TILEWISE_ISA", "sse2", "scalar"}) {
      EXPECT_NE(text.find(word), std::string::npos) << text;
    }
  }
}

// Sizes, strides and options drawn from the extremes: a Problem or an Error, never anything else
// (the sanitizer build sees overflows).
TEST(Errors, AnyCallIsAcceptedOrRefused) {
  const auto number =
      rc::gen::element<int64_t>(INT64_MIN, -2, -1, 0, 1, 2, 4, 8, 64, 257, int64_t{1} << 31,
                                int64_t{1} << 32, int64_t{1} << 59, int64_t{1} << 62, INT64_MAX);
  EXPECT_TRUE(rc::check("make_problem returns or throws Error", [&] {
    const bool packed = *rc::gen::arbitrary<bool>();
    CaseTensors tensors(parse_case(packed ? kPacked : kDense));
    Call call{tensors.backward(), tensors.options()};
    const int changes = *rc::gen::inRange(1, 6);
    for (int change = 0; change < changes; ++change) {
      Tensor& tensor = tensor_of(call.tensors, static_cast<Arg>(*rc::gen::inRange(0, kArgCount)));
      const auto dim = *rc::gen::inRange<size_t>(0, kMaxDims);
      switch (*rc::gen::inRange(0, 6)) {
        case 0:
          tensor.size[dim] = *number;
          break;
        case 1:
          tensor.stride[dim] = *number;
          break;
        case 2:
          tensor.ndim = *rc::gen::inRange(-1, 6);
          break;
        case 3:
          call.options.mask = {*number, *number, Alignment::at_offset, *number};
          break;
        case 4:
          call.options.max_q_len = *number;
          call.options.max_kv_len = *number;
          break;
        default:  // one size in every tensor, so that shapes may still agree
          for (int arg = 0; arg < kArgCount; ++arg) {
            tensor_of(call.tensors, static_cast<Arg>(arg)).size[0] = *number;
          }
      }
    }
    try {
      const Problem problem = make_problem(Direction::backward, call.tensors, call.options);
      RC_ASSERT(problem.batch >= 0);
      RC_ASSERT(problem.total_q >= 0);
    } catch (const Error& error) {
      RC_ASSERT(std::string(error.what()).starts_with("tilewise::backward: "));
    }
  }));
}

}  // namespace
}  // namespace tilewise::test
