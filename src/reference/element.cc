// Conversions between stored elements and float64, from the definitions of the formats:
// f32 1+8+23 bits, bf16 1+8+7, f16 1+5+10, all with subnormals. docs/numerics.md.
#include "reference/element.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace tilewise::reference {

namespace {

struct Format {
  int exponent_bits;
  int mantissa_bits;
};
constexpr Format kBf16{8, 7};
constexpr Format kF16{5, 10};

// 2^exponent, for exponents of normal float64 numbers.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

double decode(uint32_t bits, const Format& format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const int exponent =
      static_cast<int>(bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const bool negative = ((bits >> (format.exponent_bits + format.mantissa_bits)) & 1) != 0;
  double value = 0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = mantissa * power_of_two(1 - bias - format.mantissa_bits);
  } else {
    value = (mantissa + (1u << format.mantissa_bits)) *
            power_of_two(exponent - bias - format.mantissa_bits);
  }
  return negative ? -value : value;
}

uint32_t encode(double value, const Format& format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
  const uint32_t sign = (std::signbit(value) ? 1u : 0u)
                        << (format.exponent_bits + format.mantissa_bits);
  if (std::isnan(value)) return sign | infinity | (1u << (format.mantissa_bits - 1));
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | infinity;
  if (magnitude == 0) return sign;
  const int shift = 52 - format.mantissa_bits;
  const auto wide = std::bit_cast<uint64_t>(magnitude);
  const int top = static_cast<int>(wide >> 52) - 1023 + bias;
  if (top >= 1) {  // not subnormal: round the mantissa as an integer, half-way cases to even
    const uint64_t half = (uint64_t{1} << (shift - 1)) - 1 + ((wide >> shift) & 1);
    const uint64_t rounded =
        ((wide + half) >> shift) - (static_cast<uint64_t>(1023 - bias) << format.mantissa_bits);
    return sign | (rounded >= infinity ? infinity : static_cast<uint32_t>(rounded));
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);                  // magnitude in [2^(exponent-1), 2^exponent)
  int lowest = exponent - 1 - format.mantissa_bits;  // weight of the last mantissa bit
  if (lowest < 1 - bias - format.mantissa_bits) lowest = 1 - bias - format.mantissa_bits;
  // Half-way cases go to even under the default rounding mode.
  const auto steps = static_cast<uint64_t>(std::nearbyint(std::ldexp(magnitude, -lowest)));
  // Carries into the exponent by plain addition, from subnormals to infinity.
  const uint64_t bits = steps + (static_cast<uint64_t>(lowest - (1 - bias - format.mantissa_bits))
                                 << format.mantissa_bits);
  return sign | (bits >= infinity ? infinity : static_cast<uint32_t>(bits));
}

template <class Stored>
Stored load(const void* data, int64_t index) {
  Stored stored;
  std::memcpy(&stored, static_cast<const char*>(data) + index * int64_t{sizeof stored},
              sizeof stored);
  return stored;
}

template <class Stored>
void store(void* data, int64_t index, Stored stored) {
  std::memcpy(static_cast<char*>(data) + index * int64_t{sizeof stored}, &stored, sizeof stored);
}

}  // namespace

double read_element(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::f32:
      return load<float>(data, index);
    case DType::bf16:
      return decode(load<uint16_t>(data, index), kBf16);
    case DType::f16:
      return decode(load<uint16_t>(data, index), kF16);
    case DType::i32:
      return load<int32_t>(data, index);
    case DType::none:
      break;
  }
  throw Error(Status::internal, "reference: an element of no dtype was read");
}

void write_element(void* data, DType dtype, int64_t index, double value) {
  switch (dtype) {
    case DType::f32:
      return store(data, index, static_cast<float>(value));
    case DType::bf16:
      return store(data, index, static_cast<uint16_t>(encode(value, kBf16)));
    case DType::f16:
      return store(data, index, static_cast<uint16_t>(encode(value, kF16)));
    case DType::i32:
      return store(data, index, static_cast<int32_t>(value));
    case DType::none:
      break;
  }
  throw Error(Status::internal, "reference: an element of no dtype was written");
}

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(static_cast<float>(value));
    case DType::bf16:
      return decode(encode(value, kBf16), kBf16);
    case DType::f16:
      return decode(encode(value, kF16), kF16);
    default:
      return value;
  }
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    default:
      return 0;
  }
}

double smallest_normal(DType dtype) { return dtype == DType::f16 ? 0x1p-14 : 0x1p-126; }

}  // namespace tilewise::reference
