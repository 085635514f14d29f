// merge(): identities that must hold bitwise, stability, in place, and the texts of its errors
// (docs/contracts.md: merge).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tilewise/tilewise.hpp"

namespace tilewise {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

// One head, `rows` rows of `dim` values: out [1, rows, 1, dim], lse [1, 1, rows].
struct Piece {
  Piece(std::vector<float> out_values, std::vector<float> lse_values)
      : out(std::move(out_values)), lse(std::move(lse_values)) {}
  Partial partial() {
    const auto rows = static_cast<int64_t>(lse.size());
    const auto dim = static_cast<int64_t>(out.size()) / rows;
    return {Tensor::bshd(out.data(), DType::f32, 1, rows, 1, dim),
            Tensor::contiguous(lse.data(), DType::f32, {1, 1, rows})};
  }
  std::vector<float> out;
  std::vector<float> lse;
};

Piece merged(std::vector<Piece*> pieces) {
  Piece result(std::vector<float>(pieces[0]->out.size(), NAN),
               std::vector<float>(pieces[0]->lse.size(), NAN));
  std::vector<Partial> parts;
  for (Piece* piece : pieces) parts.push_back(piece->partial());
  const Partial to = result.partial();
  merge(parts, to.out, to.lse);
  return result;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Merge, WithEmptyReturnsTheOtherBitwise) {
  Piece x({0.1f, -0.0f, 3e38f, 1e-42f}, {0.7f, -1e4f});
  Piece empty({0, 0, 0, 0}, {kEmpty, kEmpty});
  for (Piece result : {merged({&x, &empty}), merged({&empty, &x}), merged({&x})}) {
    EXPECT_TRUE(same_bits(result.out, x.out));
    EXPECT_TRUE(same_bits(result.lse, x.lse));
  }
}

TEST(Merge, IgnoresWhateverAnEmptyPartHolds) {
  Piece x({1, 2}, {0.5f});
  Piece empty({NAN, INFINITY}, {kEmpty});
  EXPECT_TRUE(same_bits(merged({&empty, &x}).out, x.out));
}

TEST(Merge, OfEmptiesIsEmpty) {
  Piece a({0, 0}, {kEmpty});
  Piece b({0, 0}, {kEmpty});
  const Piece result = merged({&a, &b});
  EXPECT_EQ(result.out, (std::vector<float>{0, 0}));
  EXPECT_EQ(result.lse[0], kEmpty);
}

TEST(Merge, OfNothingIsEmpty) {
  std::vector<float> out(2, NAN);
  float lse = NAN;
  merge({}, Tensor::bshd(out.data(), DType::f32, 1, 1, 1, 2),
        Tensor::contiguous(&lse, DType::f32, {1, 1, 1}));
  EXPECT_EQ(out, (std::vector<float>{0, 0}));
  EXPECT_EQ(lse, kEmpty);
}

// Scores [1, 3 | 2, 5] with values 1, 2 | 3, 4, worked by hand in float64.
TEST(Merge, MatchesTheWholeRow) {
  const auto part = [](double s0, double s1, double v0, double v1) {
    const double sum = std::exp(s0) + std::exp(s1);
    return Piece({static_cast<float>((std::exp(s0) * v0 + std::exp(s1) * v1) / sum)},
                 {static_cast<float>(std::log(sum))});
  };
  Piece a = part(1, 3, 1, 2);
  Piece b = part(2, 5, 3, 4);
  const double total = std::exp(1) + std::exp(3) + std::exp(2) + std::exp(5);
  const double expected =
      (std::exp(1) * 1 + std::exp(3) * 2 + std::exp(2) * 3 + std::exp(5) * 4) / total;
  for (const Piece& result : {merged({&a, &b}), merged({&b, &a})}) {
    EXPECT_NEAR(result.out[0], expected, 1e-6);
    EXPECT_NEAR(result.lse[0], std::log(total), 1e-6);
  }
}

TEST(Merge, StaysFiniteAcrossHugeGaps) {
  Piece low({1}, {-1e4f});
  Piece high({2}, {1e4f});
  EXPECT_EQ(merged({&low, &high}).out[0], 2);
  EXPECT_EQ(merged({&high, &low}).lse[0], 1e4f);
}

TEST(Merge, CarriesNaN) {
  Piece x({1}, {NAN});
  Piece y({2}, {1});
  for (const Piece& result : {merged({&x, &y}), merged({&y, &x})}) {
    EXPECT_TRUE(std::isnan(result.out[0]));
    EXPECT_TRUE(std::isnan(result.lse[0]));
  }
}

TEST(Merge, WorksInPlaceAndIntoBf16) {
  Piece a({1, 3}, {0});
  Piece b({3, 1}, {0});
  const Partial parts[] = {a.partial(), b.partial()};
  uint16_t half[2] = {0xffff, 0xffff};
  merge(parts, Tensor::bshd(half, DType::bf16, 1, 1, 1, 2));
  EXPECT_EQ(half[0], 0x4000);  // 2
  EXPECT_EQ(half[1], 0x4000);
  merge(parts, parts[0].out, parts[0].lse);
  EXPECT_EQ(a.out, (std::vector<float>{2, 2}));
  EXPECT_FLOAT_EQ(a.lse[0], std::log(2.0f));
}

TEST(Merge, TakesPackedPartials) {
  std::vector<float> out{1, 2, 3, 4};  // [total 2, heads 2, dim 1]
  std::vector<float> lse{0, 0, 0, 0};  // [heads 2, total 2]
  const Partial part{Tensor::contiguous(out.data(), DType::f32, {2, 2, 1}),
                     Tensor::contiguous(lse.data(), DType::f32, {2, 2})};
  std::vector<float> result(4, NAN);
  merge({{part, part}}, Tensor::contiguous(result.data(), DType::f32, {2, 2, 1}));
  EXPECT_EQ(result, out);
}

std::string error_of(const std::vector<Partial>& parts, const Tensor& out, const Tensor& lse = {}) {
  try {
    merge(parts, out, lse);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(Merge, NamesWhatIsWrong) {
  Piece x({1, 2}, {0});
  const Partial part = x.partial();
  float memory[8] = {};
  const Tensor out = Tensor::bshd(memory, DType::f32, 1, 1, 1, 2);
  EXPECT_EQ(error_of({part}, {}), "tilewise::merge: out is not given, expected a tensor");
  EXPECT_EQ(error_of({part}, Tensor::contiguous(memory, DType::f32, {2})),
            "tilewise::merge: out.ndim is 1, expected 4, or 3 for a packed batch");
  EXPECT_EQ(error_of({part}, Tensor::bshd(memory, DType::i32, 1, 1, 1, 2)),
            "tilewise::merge: out.dtype is int32, expected fp32, bf16 or fp16 "
            "(from partials are kept in fp32)");
  EXPECT_EQ(error_of({part}, Tensor::bshd(memory, DType::f32, 1, 1, 1, 3)),
            "tilewise::merge: parts[0].out.size[3] is 2, expected 3 (from out.size)");
  Partial half = part;
  half.out.dtype = DType::bf16;
  EXPECT_EQ(error_of({half}, out),
            "tilewise::merge: parts[0].out.dtype is bf16, expected fp32 "
            "(from partials are kept in fp32)");
  Partial nowhere = part;
  nowhere.lse.data = nullptr;
  EXPECT_EQ(error_of({nowhere}, out),
            "tilewise::merge: parts[0].lse.data is null, expected a pointer");
  Partial elsewhere = part;
  elsewhere.out.device = {DeviceType::cuda, 0};
  EXPECT_EQ(error_of({elsewhere}, out),
            "tilewise::merge: parts[0].out.device is not cpu, expected cpu "
            "(from merge runs on the CPU)");
  EXPECT_EQ(error_of({part}, out, Tensor::contiguous(memory + 4, DType::f32, {1, 2})),
            "tilewise::merge: lse.ndim is 2, expected 3 (from out.ndim)");
}

}  // namespace
}  // namespace tilewise
