// CaseTensors: the numbers do not depend on the layout, and memory that is misused tells.
#include "case/case_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "case/verify.h"
#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

TEST(CaseTensors, ValuesDoNotDependOnTheLayout) {
  const std::string sizes = "hq=4 hkv=2 d=8 dv=8 seed=5 dtype=bf16 ";
  for (const Arg arg : {Arg::q, Arg::k, Arg::v}) {
    const auto dense = values_of(CaseTensors(parse_case(sizes + "b=2 q=6")), arg);
    for (const char* other : {"b=2 q=6 layout=bhsd", "b=2 q=6 layout=packed_qkv", "qlens=6,6",
                              "qlens=6,6 layout=bhsd", "qlens=6,6 layout=packed_qkv"}) {
      EXPECT_EQ(values_of(CaseTensors(parse_case(sizes + other)), arg), dense) << other;
    }
    EXPECT_EQ(values_of(CaseTensors(parse_case(sizes + "b=2 q=6"), Poison::off), arg), dense);
  }
}

// The same on every machine: a few values, written down once.
TEST(CaseTensors, ValuesAreThoseOfRecord) {
  const CaseTensors tensors(parse_case("q=2 d=2 seed=1"));
  const std::vector<double> q = values_of(tensors, Arg::q);
  const std::vector<double> expected = {-0x1.0455dap+0, 0x1.68026cp-1, 0x1.dab0bp-3, 0x1.e7d454p-1};
  EXPECT_EQ(q, expected);
}

TEST(CaseTensors, NormalDataHasMeanZeroAndVarianceOne) {
  const std::vector<double> q = values_of(CaseTensors(parse_case("q=1000 d=64")), Arg::q);
  double sum = 0, squares = 0;
  for (const double x : q) {
    sum += x;
    squares += x * x;
  }
  const auto count = static_cast<double>(q.size());
  EXPECT_NEAR(sum / count, 0, 0.02);
  EXPECT_NEAR(squares / count, 1, 0.02);
}

TEST(CaseTensors, DataWordsMakeWhatTheyName) {
  const auto keys = [](const std::string& data) {
    return values_of(CaseTensors(parse_case("q=64 d=64 data=" + data)), Arg::k);
  };
  const auto largest = [](const std::vector<double>& values) {
    double most = 0;
    for (const double x : values) most = std::max(most, std::fabs(x));
    return most;
  };
  EXPECT_EQ(largest(keys("zeros")), 0);
  EXPECT_EQ(largest(keys("equal")), 1.25);
  EXPECT_GT(largest(keys("large")), 500);
  EXPECT_GT(largest(keys("outlier")), 20);
  EXPECT_LT(largest(keys("normal")), 3.5);
}

// A recording of 1 x 4 rows x 2 heads x 3 columns that counts up.
CaseFile counting_file(const std::string& name) {
  if (name != "counting") throw Error(Status::invalid_argument, "no recording " + name);
  auto memory = std::make_shared<std::vector<float>>();
  for (int i = 0; i < 24; ++i) memory->push_back(static_cast<float>(i));
  const Tensor tensor = Tensor::bshd(memory->data(), DType::f32, 1, 4, 2, 3);
  return {memory, tensor, tensor, tensor};
}

TEST(CaseTensors, RecordedDataIsCopied) {
  const std::string text = "hq=2 q=2 kv=4 d=3 dtype=bf16 layout=bhsd data=file:counting";
  EXPECT_THROW(CaseTensors{parse_case(text)}, Error);  // no reader yet
  set_case_file_reader(counting_file);
  const CaseTensors tensors(parse_case(text));
  const std::vector<double> k = values_of(tensors, Arg::k);
  ASSERT_EQ(k.size(), 24u);
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(k[i], static_cast<double>(i));
  EXPECT_EQ(values_of(tensors, Arg::q), std::vector<double>(k.begin(), k.begin() + 12));
  try {
    const CaseTensors longer(parse_case("hq=2 q=5 d=3 data=file:counting"));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "case: data=file:counting: rows of q is 4, expected 5 or more (from the case)");
  }
  set_case_file_reader(nullptr);
}

TEST(CaseTensors, EverythingUnownedIsPoison) {
  const CaseTensors tensors(parse_case("qlens=2,1 d=3 dtype=fp16"));
  const Tensor& q = tensors.forward().q;
  ASSERT_EQ(q.size[0], 3 + kTailRows);
  const auto* bits = static_cast<const uint16_t*>(q.data);
  for (int64_t at = 9; at < q.size[0] * 3; ++at) {
    EXPECT_EQ(bits[at], poison_bits(DType::f16, at)) << at;
  }
  for (const double x : values_of(tensors, Arg::out)) EXPECT_TRUE(std::isnan(x));
}

TEST(CaseTensors, FaultsRightAfterAnInput) {
  const CaseTensors tensors(parse_case("q=3 d=4"));
  const auto* q = static_cast<const volatile float*>(tensors.forward().q.data);
  EXPECT_FALSE(std::isnan(q[11]));
  EXPECT_DEATH(
      {
        const float past = q[12];
        (void)past;
      },
      "");
}

// The text of the only violation.
std::string violation(const CaseTensors& tensors) {
  const std::vector<std::string> texts = tensors.violations(tensors.text().dir);
  EXPECT_EQ(texts.size(), 1u);
  return texts.empty() ? "" : texts[0];
}

class Damage : public ::testing::Test {
 protected:
  Damage() : tensors_(parse_case("b=2 hq=2 q=3 d=4 dir=bwd layout=packed_qkv want=dq,dv")) {
    run_case(tensors_, {"reference", ""});
  }
  float* data(Arg arg) const {
    return static_cast<float*>(tensor_of(tensors_.backward(), arg).data);
  }
  CaseTensors tensors_;
};

TEST_F(Damage, NoneAfterACleanRun) {
  EXPECT_TRUE(tensors_.violations(Direction::backward).empty());
  EXPECT_EQ(run_poisoned(Direction::forward, tensors_, "reference"), "");
}

TEST_F(Damage, AChangedInputShows) {
  data(Arg::d_out)[5] += 1;
  EXPECT_EQ(violation(tensors_), "d_out: an input was written to");
}

TEST_F(Damage, AWriteBeforeAnOutputShows) {
  data(Arg::out)[-1] = 0;
  EXPECT_EQ(violation(tensors_),
            "out: memory outside the tensor was written, -4 bytes from its start");
}

TEST_F(Damage, AWriteBehindAnOutputShows) {
  data(Arg::lse)[12] = 0;
  EXPECT_EQ(violation(tensors_),
            "lse: memory outside the tensor was written, 48 bytes from its start");
}

TEST_F(Damage, AWriteToAGradientNobodyWantsShows) {
  data(Arg::d_q)[2 * 4] = 0;  // where d_k of the packed gradients would lie
  EXPECT_EQ(
      violation(tensors_),
      "d_q+d_v: element 8 of the memory was written, which is in a gap or a row past the end");
}

TEST_F(Damage, AnElementLeftUnwrittenShows) {
  tensors_.poison_outputs();
  EXPECT_EQ(run_poisoned(Direction::forward, tensors_, "reference"), "");
  EXPECT_TRUE(tensors_.violations(Direction::forward).empty());
  const std::vector<std::string> texts = tensors_.violations(Direction::backward);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0], "d_q[b=0, row=0, head=0, 0] was not written (96 elements)");
}

TEST(CaseTensors, ARowPastTheEndOfAPackedBatchIsGuarded) {
  CaseTensors tensors(parse_case("qlens=2,1 d=3"));
  run_case(tensors, {"reference", ""});
  static_cast<float*>(tensors.forward().out.data)[9] = 0;
  EXPECT_EQ(violation(tensors),
            "out: element 9 of the memory was written, which is in a gap or a row past the end");
}

TEST(PoisonedWorkspace, ShowsAnOverrun) {
  PoisonedWorkspace workspace(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace.data()) % 64, 0u);
  std::memset(workspace.data(), 0, 100);
  EXPECT_FALSE(workspace.overrun());
  static_cast<char*>(workspace.data())[100] ^= 1;
  EXPECT_TRUE(workspace.overrun());
}

}  // namespace
}  // namespace tilewise::test
