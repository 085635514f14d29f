// Contract rows "Shapes, layout, memory": strides, broadcasts, alignment, head widths, big sizes.
#include <gtest/gtest.h>

#include <string>

#include "tests/case_expect.h"
#include "tests/relaid.h"

namespace tilewise::test {
namespace {

constexpr std::initializer_list<Arg> kMoved = {Arg::q,   Arg::k,     Arg::v,     Arg::out,
                                               Arg::lse, Arg::d_out, Arg::d_lse, Arg::d_q,
                                               Arg::d_k, Arg::d_v};
constexpr std::initializer_list<Arg> kResults = {Arg::out, Arg::lse, Arg::d_q,
                                                 Arg::d_k, Arg::d_v, Arg::d_sink};

using Results = std::vector<std::vector<double>>;

Results results_of(const CaseTensors& tensors) {
  Results results;
  for (const Arg arg : given_of(tensors, kResults)) results.push_back(values_of(tensors, arg));
  return results;
}

const Tensors& all_of(const CaseTensors& tensors) {
  return tensors.text().dir == Direction::backward ? tensors.backward() : tensors.forward();
}

// Forward and backward with one argument replaced by a relaid copy; results in the usual place.
void run_with(CaseTensors& tensors, const Target& target, Arg arg,
              const std::array<int64_t, kMaxDims>& strides, int64_t offset) {
  tensors.poison_outputs();
  const Relaid moved(tensor_of(all_of(tensors), arg), strides, offset);
  Tensors forward_call = tensors.forward();
  Tensors backward_call = tensors.backward();
  tensor_of(backward_call, arg) = moved.view();
  if (tensor_of(forward_call, arg).given()) tensor_of(forward_call, arg) = moved.view();
  run_call(Direction::forward, forward_call, tensors.options(), target);
  run_call(Direction::backward, backward_call, tensors.options(), target);
  if (is_output(arg)) moved.copy_back();
}

class OneMoved : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string text() {
    return "b=2 hq=4 hkv=2 q=19 kv=37 d=12 dv=20 dir=bwd mask=causal dlse=1 sink=1 "
           "deterministic=1 dtype=" +
           std::string(GetParam());
  }
};

// Each argument alone in another order, with gaps and at odd alignments: the same bits.
TEST_P(OneMoved, EveryArgumentAloneInAnotherLayout) {
  for_each_target([&](const Target& target) {
    CaseTensors tensors(target.reachable(parse_case(text())));
    run_case(tensors, target);
    const Results plain = results_of(tensors);
    for (const Arg arg : given_of(tensors, kMoved)) {
      const Tensor& tensor = tensor_of(all_of(tensors), arg);
      const std::vector<std::vector<size_t>> orders =
          tensor.ndim == 4
              ? std::vector<std::vector<size_t>>{{0, 2, 1, 3}, {1, 0, 2, 3}, {2, 1, 0, 3}}
              : std::vector<std::vector<size_t>>{{0, 1, 2}, {1, 0, 2}};
      for (const auto& order : orders) {
        for (const int64_t gap : {0, 1, 4, 13, 16}) {
          run_with(tensors, target, arg, nested_strides(tensor, order, gap), gap);
          ASSERT_EQ(results_of(tensors), plain) << name_of(arg) << " gap " << gap;
        }
      }
    }
  });
}

// Offsets past 2^31 and 2^32 elements in each argument, by stride.
TEST_P(OneMoved, EveryArgumentAloneAtEnormousStrides) {
  for_each_target([&](const Target& target) {
    if (target.on_device()) return;  // reserves address space, which device memory has not
    CaseTensors tensors(parse_case(text()));
    run_case(tensors, target);
    const Results plain = results_of(tensors);
    for (const Arg arg : kMoved) {
      const Tensor& tensor = tensor_of(tensors.backward(), arg);
      auto strides = nested_strides(
          tensor, tensor.ndim == 4 ? std::vector<size_t>{0, 1, 2, 3} : std::vector<size_t>{0, 1, 2},
          0);
      strides[0] = (int64_t{1} << 32) + 64;  // the batch
      run_with(tensors, target, arg, strides, 0);
      ASSERT_EQ(results_of(tensors), plain) << name_of(arg) << " batch stride 2^32 + 64";
      strides[0] = 1 << 20;
      strides[1] = (int64_t{1} << 31) / 8 + 4096;  // rows; heads of lse
      run_with(tensors, target, arg, strides, 0);
      ASSERT_EQ(results_of(tensors), plain) << name_of(arg) << " row stride 2^28";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layout, OneMoved, ::testing::Values("fp32", "bf16", "fp16"));

TEST(Layout, AllKindsAreOneCodePath) {
  for (const char* layout : {"bshd", "bhsd", "packed_qkv", "strided"}) {
    const std::string text = "b=2 hq=4 hkv=2 q=35 d=24 mask=causal layout=" + std::string(layout);
    expect_all_match_everywhere({text});
  }
  for (int seed = 0; seed < 40; ++seed) {
    expect_matches_reference(
        "b=3 hq=4 hkv=2 q=21 kv=34 d=12 dv=5 dir=bwd sink=1 alibi=2 dlse=1 "
        "layout=strided dtype=bf16 seed=" +
        std::to_string(seed));
    expect_matches_reference(
        "hq=4 hkv=2 qlens=9,0,21 kvlens=5,30,7 d=12 dv=5 dir=bwd sink=1 "
        "layout=strided dlse=1 seed=" +
        std::to_string(seed));
  }
}

// Any dimension of size 1 may have any stride at all.
TEST(Layout, StridesOfSizeOneAreIgnored) {
  for (const char* sizes :
       {"b=1 hq=1 q=1 d=8", "b=1 hq=1 q=9 d=8", "b=2 hq=1 q=1 d=8", "b=1 hq=2 q=1 d=8",
        "b=1 hq=1 q=1 d=1", "b=2 hq=2 q=9 d=1", "qlens=1 d=8", "qlens=1,0 hq=2 d=1"}) {
    for (int seed = 0; seed < 12; ++seed) {
      expect_matches_reference(std::string(sizes) + " dir=bwd layout=strided dlse=1 sink=1 seed=" +
                               std::to_string(seed));
    }
  }
}

// sum().backward() makes dO one number, stride 0 everywhere but innermost; K and V of one head or
// one sequence serve all.
TEST(Layout, BroadcastInputs) {
  for (const char* dtype : {"fp32", "bf16"}) {
    for_each_target([&](const Target& target) {
      CaseTensors tensors = fitted_tensors(target,
                                           "b=2 hq=4 hkv=2 q=9 kv=33 d=12 dir=bwd deterministic=1 "
                                           "mask=causal dtype=" +
                                               std::string(dtype));
      const int64_t columns = tensors.text().d;
      const std::vector<double> k = values_of(tensors, Arg::k);
      const std::vector<double> v = values_of(tensors, Arg::v);
      // First with the numbers written out, then with one copy and stride 0.
      set_values(tensors, Arg::d_out, [](const ElementIndex& at) { return at.column % 5 - 2.0; });
      const auto same_for_all = [columns](const std::vector<double>& one) {
        return [&one, columns](const ElementIndex& at) {
          return one[static_cast<size_t>(at.row * 2 * columns + at.column)];
        };
      };
      set_values(tensors, Arg::k, same_for_all(k));
      set_values(tensors, Arg::v, same_for_all(v));
      run_case(tensors, target);
      const Results plain = results_of(tensors);
      const int64_t row = tensors.forward().k.stride[1];
      if (target.can_backward()) {
        run_with(tensors, target, Arg::d_out, {0, 0, 0, 1}, 0);
        EXPECT_EQ(results_of(tensors), plain) << "d_out";
      }
      for (const Arg arg : {Arg::k, Arg::v}) {
        run_with(tensors, target, arg, {0, row, 0, 1}, 0);
        EXPECT_EQ(results_of(tensors), plain) << name_of(arg);
      }
    });
  }
}

TEST(Layout, EveryHeadWidth) {
  // Of a GPU each width is a kernel to compile.
  const bool only_gpu = targets().size() == 1 && targets()[0].on_device();
  for (int d = 1; d <= 256; d += only_gpu ? 11 : 1) {
    const char* dtype = d % 3 == 0 ? "fp32" : d % 3 == 1 ? "bf16" : "fp16";
    expect_matches_reference("hq=2 hkv=1 q=5 kv=10 dir=bwd mask=causal d=" + std::to_string(d) +
                             " dtype=" + dtype);
  }
}

TEST(Layout, EveryLength) {
  for (int n = 1; n <= 130; ++n) {
    const std::string lens = std::to_string(n);
    expect_matches_reference("d=8 dir=bwd mask=causal q=" + lens);
    expect_matches_reference("d=8 dir=bwd dtype=bf16 q=" + lens + " kv=" + std::to_string(131 - n));
  }
}

// More than 65535 sequences or heads.
TEST(Layout, ManySequencesAndHeads) {
  expect_all_match({"b=65537 q=1 kv=2 d=3 dir=bwd", "hq=65538 hkv=2 q=1 kv=3 d=3 dir=bwd",
                    "b=70000 q=2 kv=3 d=16 dtype=bf16",
                    "b=70000 q=2 d=16 dtype=bf16 layout=strided",
                    "hq=70000 hkv=35000 q=2 kv=3 d=16 dtype=bf16"});
}

// More tiles than the machine has processors, of several steps each: who takes the next tile must
// leave nothing of the last one behind.
TEST(Layout, MoreTilesThanProcessors) {
  expect_all_match({"hq=72 hkv=24 q=260 kv=300 d=64 mask=causal dtype=bf16",
                    "hq=72 hkv=8 q=260 d=128 mask=causal dtype=fp16 lse=0"});
}

}  // namespace
}  // namespace tilewise::test
