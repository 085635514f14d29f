// Conversions of stored elements: every 16-bit pattern, and rounding at its edges.
#include "reference/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tilewise::reference {
namespace {

double value_of_bits(DType dtype, uint16_t bits) { return read_element(&bits, dtype, 0); }
uint16_t bits_of(DType dtype, double value) {
  uint16_t bits = 0;
  write_element(&bits, dtype, 0, value);
  return bits;
}

TEST(Element, EveryPatternRoundTrips) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const double value = value_of_bits(dtype, static_cast<uint16_t>(bits));
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(round_to(dtype, value)));
      } else {
        ASSERT_EQ(bits_of(dtype, value), bits) << name_of(dtype);
      }
    }
  }
}

// Halfway between neighbours goes to the even one; anything else to the nearer.
TEST(Element, RoundsToNearestEven) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const uint32_t infinity = dtype == DType::f16 ? 0x7C00 : 0x7F80;
    for (uint32_t bits = 0; bits + 1 < infinity; ++bits) {
      const double low = value_of_bits(dtype, static_cast<uint16_t>(bits));
      const double high = value_of_bits(dtype, static_cast<uint16_t>(bits + 1));
      const double middle = low / 2 + high / 2;
      const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
      ASSERT_EQ(bits_of(dtype, middle), even) << name_of(dtype) << " " << bits;
      ASSERT_EQ(bits_of(dtype, std::nextafter(middle, 0.0)), bits);
      ASSERT_EQ(bits_of(dtype, std::nextafter(middle, 1e300)), bits + 1);
      ASSERT_EQ(bits_of(dtype, -middle), even | 0x8000u);
    }
  }
}

TEST(Element, KnownBits) {
  EXPECT_EQ(bits_of(DType::f16, 65504), 0x7BFF);
  EXPECT_EQ(bits_of(DType::f16, 65519.99), 0x7BFF);
  EXPECT_EQ(bits_of(DType::f16, 65520), 0x7C00);
  EXPECT_EQ(bits_of(DType::f16, 0x1p-24), 0x0001);
  EXPECT_EQ(bits_of(DType::f16, 0x1p-25), 0x0000);
  EXPECT_EQ(bits_of(DType::bf16, 1.0), 0x3F80);
  EXPECT_EQ(bits_of(DType::bf16, -0.0), 0x8000);
  EXPECT_EQ(bits_of(DType::bf16, 3.4e38), 0x7F80);
  EXPECT_TRUE(std::isnan(value_of_bits(DType::bf16, 0x7F81)));
}

TEST(Element, UnitRoundoffs) {
  EXPECT_EQ(unit_roundoff(DType::f32), std::numeric_limits<float>::epsilon() / 2);
  EXPECT_EQ(unit_roundoff(DType::f16), 0x1p-11);
  EXPECT_EQ(unit_roundoff(DType::bf16), 0x1p-8);
  // Half the distance from 1 to the next value.
  EXPECT_EQ(value_of_bits(DType::bf16, 0x3F81), 1 + 2 * unit_roundoff(DType::bf16));
  EXPECT_EQ(value_of_bits(DType::f16, 0x3C01), 1 + 2 * unit_roundoff(DType::f16));
}

}  // namespace
}  // namespace tilewise::reference
