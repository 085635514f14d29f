// Forward by pairs of bf16 over plain arrays instead of VDPBF16PS or BFDOT, against naive loops:
// layouts of pairs, odd lengths and odd ends of masks, and NaN where no row may see it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu/forward.h"
#include "cpu/simd_scalar.h"

namespace tilewise::cpu {
namespace {

struct ScalarPairs : Scalar {
  static Vector dot(Vector a, Vector b, Vector sum) {
    return halves(a, 0) * halves(b, 0) + (halves(a, 1) * halves(b, 1) + sum);
  }
  static Vector pack(Vector low, Vector high) {
    uint16_t words[2][kLanes];
    store_bf16(words[0], low);
    store_bf16(words[1], high);
    return join_words(words[0], words[1]);
  }
  static Vector load_words(const uint16_t* p) {
    Vector v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static Vector join_words(const uint16_t* low, const uint16_t* high) {
    uint16_t words[2 * kLanes];
    for (int i = 0; i < kLanes; ++i) {
      words[2 * i] = low[i];
      words[2 * i + 1] = high[i];
    }
    return load_words(words);
  }

 private:
  static Vector halves(Vector v, int half) {
    uint16_t words[2 * kLanes];
    std::memcpy(words, &v, sizeof words);
    uint16_t chosen[kLanes];
    for (int i = 0; i < kLanes; ++i) chosen[i] = words[2 * i + half];
    return load_bf16(chosen);
  }
};

struct ThinPairs : ScalarPairs {
  static constexpr int kScoreVectors = 1;
};

uint16_t as_bf16(float value) {
  uint16_t words[Scalar::kLanes];
  Scalar::store_bf16(words, Scalar::set1(value));
  return words[0];
}

double as_double(uint16_t word) {
  const uint16_t words[Scalar::kLanes] = {word};
  return static_cast<double>(Scalar::load_bf16(words)[0]);
}

struct Shape {
  int rows;
  int keys;
  int head_dim;
  int value_dim;
  int left = -1;  // of a window around the diagonal, which ends at the last key; -1: unbounded
  int right = -1;
  int seen = 1 << 20;  // keys from here on are seen by no row
};

enum class Copies { of_tile, of_call };

class Sample {
 public:
  explicit Sample(const Shape& shape) : shape_(shape) {
    std::mt19937 random(1);
    const auto fill = [&](std::vector<uint16_t>& words, int count) {
      std::normal_distribution<float> normal;
      for (int i = 0; i < count; ++i) words.push_back(as_bf16(normal(random)));
    };
    fill(q, shape.rows * shape.head_dim);
    fill(k, shape.keys * shape.head_dim);
    fill(v, shape.keys * shape.value_dim);
  }

  template <class S>
  void run(Copies copies, int parts = 1) {
    Settings settings = settings_of<S>();
    const int panels = settings.panels;
    constexpr int kW = kWidth<S>;
    intervals(panels * kW);
    const std::vector<int64_t> all_begins = begins;
    const std::vector<int64_t> all_ends = ends;
    const size_t blocks = (at(shape_.keys) + kBlock - 1) / kBlock;
    std::vector<float> keys(blocks * kBlock * at(settings.key_row), NAN);
    std::vector<float> values(blocks * kBlock * at(settings.value_row), NAN);
    ForwardTile tile = tile_of();
    if (copies == Copies::of_call) {
      copy_keys<S>(settings, {tile.k, tile.v, 0, shape_.keys, keys.data(), values.data()});
      tile.key_copy = keys.data();
      tile.value_copy = values.data();
    }
    const size_t lanes = at(panels * kW);
    std::vector<float> queries(lanes * at(shape_.head_dim), NAN);
    std::vector<float> scores(kBlock * kW, NAN);
    std::vector<float> factors(kW, NAN);
    const int64_t part_floats = static_cast<int64_t>(lanes) * (shape_.value_dim + 2);
    std::vector<float> sums(at(part_floats * parts), NAN);
    ForwardScratch scratch;
    scratch.queries = queries.data();
    scratch.factors = factors.data();
    scratch.scores = scores.data();
    std::vector<float> block_keys(kBlock * at(settings.key_row), NAN);
    std::vector<float> block_values(kBlock * at(settings.value_row), NAN);
    scratch.keys = block_keys.data();
    scratch.values = block_values.data();
    const auto place = [&](int part) {
      scratch.maxima = sums.data() + part * part_floats;
      scratch.sums = scratch.maxima + lanes;
      scratch.outs = scratch.sums + lanes;
    };
    place(0);
    if (parts == 1) {
      forward_tile<S>(settings, tile, scratch);
    } else {
      for (int part = 0; part < parts; ++part) {
        const int64_t first = part * static_cast<int64_t>(kBlock);
        for (size_t lane = 0; lane < lanes; ++lane) {
          const int64_t end = part + 1 == parts ? shape_.keys : first + kBlock;
          begins[lane] = std::clamp(all_begins[lane], first, end);
          ends[lane] = std::clamp(all_ends[lane], first, end);
        }
        place(part);
        attend_part<S>(settings, tile, scratch);
      }
      place(0);
      merge_parts<S>(settings, tile, scratch, {parts, part_floats});
      begins = all_begins;
      ends = all_ends;
    }
  }

  void expect_right() const {
    for (int i = 0; i < shape_.rows; ++i) {
      std::vector<double> weights;
      double sum = 0;
      for (int64_t j = begins[at(i)]; j < ends[at(i)]; ++j) {
        double dot = 0;
        for (int d = 0; d < shape_.head_dim; ++d) {
          dot +=
              as_double(q[at(i * shape_.head_dim + d)]) * as_double(k[at(j * shape_.head_dim + d)]);
        }
        weights.push_back(std::exp(kScale * dot));
        sum += weights.back();
      }
      if (weights.empty()) {
        EXPECT_EQ(lse[at(i)], -std::numeric_limits<float>::infinity());
      } else {
        const double expected = std::log(sum);
        EXPECT_NEAR(lse[at(i)], expected, 2e-6 + 4e-7 * std::fabs(expected)) << "row " << i;
      }
      for (int d = 0; d < shape_.value_dim; ++d) expect_element(i, d, weights, sum);
    }
  }

  bool is_finite(int row, int d) const {
    return std::isfinite(as_double(out[at(row * shape_.value_dim + d)]));
  }
  bool sees(int row, int64_t key) const { return key >= begins[at(row)] && key < ends[at(row)]; }

  std::vector<uint16_t> q, k, v, out;
  std::vector<float> lse;

 private:
  static constexpr size_t kBlock = 16;
  static constexpr double kScale = 0.3;
  static size_t at(int64_t index) { return static_cast<size_t>(index); }

  template <class S>
  Settings settings_of() const {
    Settings settings;
    settings.element = Element::bf16;
    settings.head_dim = shape_.head_dim;
    settings.value_dim = shape_.value_dim;
    settings.scale = kScale;
    settings.panels = (shape_.rows + kWidth<S> - 1) / kWidth<S>;
    settings.block_keys = kBlock;
    settings.copy_keys = settings.copy_values = true;
    settings.key_row = whole_vectors<S>(pairs_of(shape_.head_dim));
    settings.value_row = whole_vectors<S>(shape_.value_dim) / 2;
    return settings;
  }

  void intervals(int lanes) {
    const int off = shape_.keys - shape_.rows;
    begins.clear();
    ends.clear();
    for (int lane = 0; lane < lanes; ++lane) {
      const int key = std::min(lane, shape_.rows - 1) + off;
      const int begin = shape_.left < 0 ? 0 : std::clamp(key - shape_.left, 0, shape_.keys);
      const int end =
          shape_.right < 0 ? shape_.keys : std::clamp(key + shape_.right + 1, 0, shape_.keys);
      begins.push_back(begin);
      ends.push_back(std::max(begin, std::min(end, shape_.seen)));
    }
  }

  ForwardTile tile_of() {
    out.assign(at(shape_.rows * shape_.value_dim), 0);
    lse.assign(at(shape_.rows), NAN);
    ForwardTile tile;
    tile.q = {q.data(), shape_.head_dim, 0};
    tile.k = {k.data(), shape_.head_dim, 0};
    tile.v = {v.data(), shape_.value_dim, 0};
    tile.rows = shape_.rows;
    tile.key_begin = begins.data();
    tile.key_end = ends.data();
    tile.out = {out.data(), shape_.value_dim};
    tile.lse = lse.data();
    return tile;
  }

  void expect_element(int row, int d, const std::vector<double>& weights, double sum) const {
    double value = 0;
    double size = 0;
    for (size_t j = 0; j < weights.size(); ++j) {
      const int64_t key = begins[at(row)] + static_cast<int64_t>(j);
      const double term = weights[j] * as_double(v[at(key * shape_.value_dim + d)]);
      value += term / sum;
      size += std::fabs(term) / sum;
    }
    const double got = as_double(out[at(row * shape_.value_dim + d)]);
    EXPECT_NEAR(got, value, 0x1p-8 * (std::fabs(value) + size)) << row << ", " << d;
  }

  Shape shape_;
  std::vector<int64_t> begins, ends;
};

TEST(PairForward, IsRightForAnyShape) {
  for (const Shape& shape :
       {Shape{8, 16, 8, 8}, Shape{13, 45, 16, 12}, Shape{16, 50, 16, 16, -1, 0},
        Shape{20, 33, 7, 5, 4, 3}, Shape{30, 17, 9, 1, -1, 0}, Shape{5, 1, 1, 3},
        Shape{40, 70, 11, 20, 5, -1}, Shape{24, 24, 2, 9, 1, 0}, Shape{3, 0, 4, 4}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " rows, " << shape.keys << " keys, "
                                    << shape.head_dim << " x " << shape.value_dim);
    for (const Copies copies : {Copies::of_tile, Copies::of_call}) {
      Sample sample(shape);
      sample.run<ScalarPairs>(copies);
      sample.expect_right();
      sample.run<ThinPairs>(copies);
      sample.expect_right();
    }
  }
}

TEST(PairForward, JoinsPartsOfTheKeys) {
  for (const Shape& shape : {Shape{4, 61, 10, 7}, Shape{3, 47, 8, 8, 21, 0}}) {
    Sample sample(shape);
    sample.run<ThinPairs>(Copies::of_tile, (shape.keys + 15) / 16);
    sample.expect_right();
  }
}

// Windows that start and end at even and odd keys, so that pairs have an invisible half.
TEST(PairForward, KeepsInvisibleNaNOutAndVisibleIn) {
  for (const int left : {3, 4}) {
    for (const int key : {20, 21, 22, 23, 38, 39}) {
      for (const bool last : {false, true}) {
        Sample sample({last ? 1 : 24, 40, 6, 5, left, last ? -1 : 0});
        sample.v[static_cast<size_t>(key * 5 + 2)] = 0x7fc0;
        sample.v[static_cast<size_t>(key * 5 + 3)] = 0xff80;
        sample.run<ScalarPairs>(Copies::of_call);
        for (int row = 0; row < (last ? 1 : 24); ++row) {
          EXPECT_TRUE(sample.is_finite(row, 1));
          EXPECT_EQ(sample.is_finite(row, 2), !sample.sees(row, key)) << row << ", " << key;
          EXPECT_EQ(sample.is_finite(row, 3), !sample.sees(row, key)) << row << ", " << key;
        }
      }
    }
  }
}

// Every row sees the same keys, an odd number of them, and the next one holds what must not count.
TEST(PairForward, KeepsTheOtherHalfOfTheLastPairOut) {
  Shape shape = {5, 22, 6, 5};
  shape.seen = 21;
  Sample sample(shape);
  sample.v[21 * 5 + 2] = 0x7fc0;
  sample.run<ScalarPairs>(Copies::of_call);
  sample.expect_right();
}

}  // namespace
}  // namespace tilewise::cpu
