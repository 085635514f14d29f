// One element of memory as a float and back: bf16 and fp16 by their bits, rounded to nearest even.
// For host code off the hot path; the kernels convert whole vectors.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "tilewise/tilewise.hpp"

namespace tilewise {

inline float float_from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float float_from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  // The exponent field moves by 127 - 15; the multiplication does it, denormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | sign);
}

inline uint16_t f16_from_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and up
  if (magnitude < 0x38800000u) {
    // Denormal results: adding 0.5 leaves the rounded 2^-24 units in the low mantissa bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// element: index from data, in elements.
inline float load_element(const void* data, DType dtype, int64_t element) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[element];
    case DType::bf16:
      return float_from_bf16(static_cast<const uint16_t*>(data)[element]);
    case DType::f16:
      return float_from_f16(static_cast<const uint16_t*>(data)[element]);
    default:
      return 0;
  }
}

inline void store_element(void* data, DType dtype, int64_t element, float value) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(data)[element] = value;
      break;
    case DType::bf16:
      static_cast<uint16_t*>(data)[element] = bf16_from_float(value);
      break;
    case DType::f16:
      static_cast<uint16_t*>(data)[element] = f16_from_float(value);
      break;
    default:
      break;
  }
}

}  // namespace tilewise
