// The bit code of the portable vector against element.h: every 16-bit pattern up, and floats around
// every rounding boundary down.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "cpu/simd_scalar.h"
#include "element.h"

namespace tilewise::cpu {
namespace {

void expect_same_bits(float got, float expected, uint32_t pattern) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << pattern;
  } else {
    EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(expected)) << pattern;
  }
}

TEST(ElementConversion, WidensEveryPattern) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const uint16_t words[4] = {bits, bits, bits, bits};
    float lanes[4];
    Scalar::store(lanes, Scalar::load_bf16(words));
    expect_same_bits(lanes[3], float_from_bf16(bits), pattern);
    Scalar::store(lanes, Scalar::load_f16(words));
    expect_same_bits(lanes[3], float_from_f16(bits), pattern);
  }
}

TEST(ElementConversion, RoundsToNearestEven) {
  for (uint64_t pattern = 0; pattern < 0x100000000; pattern += 0x1003) {
    for (int64_t near : {-1, 0, 1}) {
      const auto bits =
          static_cast<uint32_t>(static_cast<int64_t>(pattern & ~uint64_t{0xfff}) + near);
      const auto value = std::bit_cast<float>(bits);
      uint16_t words[4];
      Scalar::store_bf16(words, Scalar::set1(value));
      ASSERT_EQ(words[2], bf16_from_float(value)) << bits;
      Scalar::store_f16(words, Scalar::set1(value));
      ASSERT_EQ(words[2], f16_from_float(value)) << bits;
    }
  }
}

}  // namespace
}  // namespace tilewise::cpu
