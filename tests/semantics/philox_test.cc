// Philox4x32-10 against the known answers published with its paper, and the dropout mask made of it
// against what a fair coin would do.
#include "semantics/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace tilewise::semantics {
namespace {

struct KnownAnswer {
  u32 counter[4];
  u64 key;
  u32 expected[4];
};

TEST(Philox, KnownAnswers) {
  const KnownAnswer answers[] = {
      {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       0xffffffffffffffff,
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       0x299f31d0a4093822,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const KnownAnswer& answer : answers) {
    const u32* c = answer.counter;
    const PhiloxWords words = philox4x32_10(c[0], c[1], c[2], c[3], answer.key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(words.word[i], answer.expected[i]) << "word " << i;
  }
}

// |kept - expected| within 5 standard deviations of a binomial: a false alarm in two million.
void expect_binomial(int64_t kept, int64_t count, double keep_probability) {
  const auto n = static_cast<double>(count);
  const double deviation = std::sqrt(n * keep_probability * (1 - keep_probability));
  EXPECT_NEAR(static_cast<double>(kept), n * keep_probability, 5 * deviation);
}

TEST(Dropout, KeepsTheRightShare) {
  for (const double p : {0.01, 0.1, 0.5, 0.9, 0.999}) {
    const Dropout dropout = make_dropout(p, 1234, 0);
    ASSERT_TRUE(dropout.active());
    EXPECT_FLOAT_EQ(dropout.keep_scale, static_cast<float>(1 / (1 - p)));
    int64_t kept = 0;
    for (i64 i = 0; i < 400; ++i) {
      for (i64 j = 0; j < 1000; ++j) kept += dropout.keeps(3, i, j) ? 1 : 0;
    }
    expect_binomial(kept, 400 * 1000, 1 - p);
  }
}

// Share of positions where two masks agree, under p = 0.5 a fair coin.
int64_t agreements(const Dropout& a, const Dropout& b, u64 head_b, i64 shift_i, i64 shift_j) {
  int64_t same = 0;
  for (i64 i = 0; i < 200; ++i) {
    for (i64 j = 0; j < 500; ++j) {
      same += a.keeps(0, i, j) == b.keeps(head_b, i + shift_i, j + shift_j) ? 1 : 0;
    }
  }
  return same;
}

TEST(Dropout, RowsKeysHeadsSeedsAndOffsetsAreIndependent) {
  const Dropout dropout = make_dropout(0.5, 42, 0);
  const int64_t count = 200 * 500;
  EXPECT_EQ(agreements(dropout, dropout, 0, 0, 0), count);
  for (const i64 shift : {1, 2, 3, 4, 5, 64}) {
    expect_binomial(agreements(dropout, dropout, 0, shift, 0), count, 0.5);
    expect_binomial(agreements(dropout, dropout, 0, 0, shift), count, 0.5);
  }
  expect_binomial(agreements(dropout, dropout, 1, 0, 0), count, 0.5);
  expect_binomial(agreements(dropout, make_dropout(0.5, 43, 0), 0, 0, 0), count, 0.5);
  expect_binomial(agreements(dropout, make_dropout(0.5, 42ULL + (1ULL << 32), 0), 0, 0, 0), count,
                  0.5);
  expect_binomial(agreements(dropout, make_dropout(0.5, 42, 1), 0, 0, 0), count, 0.5);
}

TEST(Dropout, ZeroKeepsAll) {
  const Dropout dropout = make_dropout(0, 7, 0);
  EXPECT_FALSE(dropout.active());
  for (i64 j = 0; j < 100; ++j) EXPECT_TRUE(dropout.keeps(0, 0, j));
}

TEST(Dropout, OneLessThanOneStillHasAThreshold) {
  const Dropout dropout = make_dropout(std::nextafter(1.0, 0.0), 7, 0);
  EXPECT_EQ(dropout.threshold, 4294967295u);
}

// The counter the contract names: (j / 4, i, batch * q_heads + head, offset), word j % 4.
TEST(Dropout, CounterIsTheContracts) {
  const Dropout dropout = make_dropout(0.25, 99, 5);
  EXPECT_EQ(dropout.threshold, 1u << 30);
  for (i64 j = 0; j < 64; ++j) {
    const PhiloxWords words = philox4x32_10(static_cast<u32>(j / 4), 17, 3, 5, 99);
    EXPECT_EQ(dropout.keeps(3, 17, j), words.word[j % 4] >= dropout.threshold) << j;
  }
}

}  // namespace
}  // namespace tilewise::semantics
