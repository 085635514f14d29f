// Contract row "packed (varlen)": any sequence may be empty, rows after the last are nobody's, and
// a sequence gives the same bits alone, in company and in a dense batch.
#include <gtest/gtest.h>

#include <string>

#include "case/case_data.h"
#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

constexpr std::initializer_list<Arg> kResults = {Arg::out, Arg::lse, Arg::d_q, Arg::d_k, Arg::d_v};

TEST(Packed, LengthsFromBugReports) {
  expect_all_match_everywhere({
      "hq=12 qlens=64,60 d=64",
      "hq=2 qlens=9,8,8,12,8,12 d=16 mask=causal",
      "hq=2 qlens=5,6,7 kvlens=5,0,7 d=16",
      "hq=2 qlens=5,6,7 kvlens=0,0,0 d=16",
      "hq=4 hkv=2 qlens=1,3 kvlens=1,3 d=64",
      "hq=2 qlens=17,130,1,64,0,65 kvlens=130,17,64,1,9,0 d=16 mask=causal",
      "hq=4 hkv=1 qlens=1,1,1,1 kvlens=32,64,96,48 d=16 mask=causal",
  });
}

TEST(Packed, EqualLengthsGiveTheBitsOfADenseBatch) {
  for (const char* options : {"mask=causal", "mask=window:9:2 alibi=2 sink=1", "dropout=0.3"}) {
    const std::string rest =
        " hq=4 hkv=2 d=16 dir=bwd deterministic=1 dtype=bf16 " + std::string(options);
    for_each_target([&](const Target& target) {
      CaseTensors dense = fitted_tensors(target, "b=3 q=37 kv=50" + rest);
      CaseTensors packed = fitted_tensors(target, "qlens=37,37,37 kvlens=50,50,50" + rest);
      run_case(dense, target);
      run_case(packed, target);
      for (const Arg arg : given_of(dense, kResults)) {
        EXPECT_EQ(values_of(dense, arg), values_of(packed, arg)) << name_of(arg);
      }
    });
  }
}

// A sequence's results do not depend on what else is in the batch.
TEST(Packed, CompanyChangesNoBit) {
  const std::string rest = " hq=4 hkv=2 d=16 dir=bwd deterministic=1 mask=causal";
  for_each_target([&](const Target& target) {
    CaseTensors batch = fitted_tensors(target, "qlens=5,70,0,33 kvlens=9,66,4,33" + rest);
    run_case(batch, target);
    const Case alone_text = target.fitted(parse_case("q=70 kv=66" + rest));
    CaseTensors alone(alone_text);
    for (const Arg arg : given_of(alone, {Arg::q, Arg::k, Arg::v, Arg::d_out})) {
      set_values(alone, arg, [&](ElementIndex at) {
        at.sequence = 1;
        return case_value(alone_text, arg, at);
      });
    }
    run_case(alone, target);
    for (const Arg arg : given_of(alone, kResults)) {
      std::vector<double> second;  // sequence 1 of the batch
      const bool backward = batch.text().dir == Direction::backward;
      const Tensor& tensor = tensor_of(backward ? batch.backward() : batch.forward(), arg);
      for_each_element(batch.text(), arg, tensor, [&](int64_t offset, const ElementIndex& at) {
        if (at.sequence == 1) {
          second.push_back(reference::read_element(tensor.data, tensor.dtype, offset));
        }
      });
      EXPECT_EQ(values_of(alone, arg), second) << name_of(arg);
    }
  });
}

// max_q_len and max_kv_len are upper bounds; 0 stands for the totals.
TEST(Packed, UpperBoundsDoNotChangeTheResult) {
  for_each_target([](const Target& target) {
    CaseTensors tensors =
        fitted_tensors(target,
                       "hq=2 qlens=5,70,0,33 kvlens=9,66,4,33 d=16 mask=causal dir=bwd "
                       "deterministic=1 layout=strided");
    const std::vector<Arg> results = given_of(tensors, kResults);
    run_case(tensors, target);
    std::vector<std::vector<double>> plain;
    for (const Arg arg : results) plain.push_back(values_of(tensors, arg));
    for (const int64_t bound : {0, 70, 71, 100}) {
      tensors.poison_outputs();
      Options options = tensors.options();
      options.max_q_len = options.max_kv_len = bound;
      run_call(Direction::forward, tensors.forward(), options, target);
      run_call(Direction::backward, tensors.backward(), options, target);
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(values_of(tensors, results[i]), plain[i]) << name_of(results[i]) << bound;
      }
    }
  });
}

}  // namespace
}  // namespace tilewise::test
