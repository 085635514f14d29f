// Counter-based data: no state, no std distribution, no libm.
#include "case/case_data.h"

#include <cmath>
#include <limits>

namespace tilewise {

namespace {

uint64_t element_bits(uint64_t seed, Arg arg, const ElementIndex& index) {
  uint64_t bits = mix_bits(seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(arg) + 1);
  bits = mix_bits(bits + static_cast<uint64_t>(index.sequence));
  bits =
      mix_bits(bits ^ (static_cast<uint64_t>(index.row) << 20) ^ static_cast<uint64_t>(index.head));
  return mix_bits(bits + static_cast<uint64_t>(index.column));
}

// Some channels of q and k are 32 times larger, as in trained models; key 0 stands out as well.
double outlier_factor(uint64_t seed, Arg arg, const ElementIndex& index) {
  const uint64_t channel = mix_bits(mix_bits(seed + static_cast<uint64_t>(index.head)) +
                                    static_cast<uint64_t>(index.column));
  double factor = channel % 16 == 0 ? 32.0 : 1.0;
  if (arg == Arg::k && index.row == 0) factor *= 8.0;
  return factor;
}

}  // namespace

uint64_t mix_bits(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

double normal_from(uint64_t bits) {
  const auto sum = static_cast<int64_t>((bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) +
                                        ((bits >> 32) & 0xFFFF) + (bits >> 48));
  constexpr double kUnitVariance = 1.7320508075688772 / 65536.0;
  return static_cast<double>(sum - 2 * 65535) * kUnitVariance;
}

double case_value(const Case& c, Arg arg, const ElementIndex& index) {
  const uint64_t bits = element_bits(c.seed, arg, index);
  if (arg == Arg::sink) {  // every fourth head has none
    return bits % 4 == 0 ? -std::numeric_limits<double>::infinity() : 2.0 * normal_from(bits);
  }
  if (arg == Arg::alibi_slopes) {  // 1/4 down to 1/512, not powers of two
    const double fraction = 1.0 + static_cast<double>(bits >> 48) / 65536.0;
    return std::ldexp(fraction, -3 - static_cast<int>(index.head % 7));
  }
  const double value = normal_from(bits);
  if (arg != Arg::q && arg != Arg::k) return value;
  switch (c.data) {
    case CaseData::large:
      return 256.0 * value;  // scores of tens of thousands: one key takes all the weight
    case CaseData::outlier:
      return value * outlier_factor(c.seed, arg, index);
    case CaseData::equal:
      return 1.25;
    case CaseData::zeros:
      return 0.0;
    case CaseData::normal:
    case CaseData::file:
      break;
  }
  return value;
}

}  // namespace tilewise
