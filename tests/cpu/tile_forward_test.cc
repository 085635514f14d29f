// Forward on matrix tiles over plain arrays instead of AMX registers, against naive loops: layouts
// of tiles, masks, the order of stages, ragged sizes, and NaN where no row may see it.
#include "cpu/tile_forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tile_arrays.h"

namespace tilewise::cpu {
namespace {

struct Shape {
  int rows;
  int keys;
  int head_dim;
  int value_dim;
  bool causal;
};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

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
    for (int row = 0; row < panels() * kTileRows; ++row) {
      const int real = std::min(row, shape.rows - 1);
      begins.push_back(0);
      ends.push_back(shape.causal ? std::max(0, shape.keys - shape.rows + real + 1) : shape.keys);
    }
  }

  int panels() const { return (shape_.rows + kTileRows - 1) / kTileRows; }

  void run() {
    Settings settings;
    settings.element = Element::bf16;
    settings.head_dim = shape_.head_dim;
    settings.value_dim = shape_.value_dim;
    settings.scale = 0.3;
    settings.panels = panels();
    settings.block_keys = static_cast<int>(kTileBlock);
    settings.key_row = (shape_.head_dim + 31) / 32 * 16;
    settings.value_row = (shape_.value_dim + 31) / 32 * 16;
    const auto block = static_cast<size_t>(kTileBlock);
    const auto blocks = (static_cast<size_t>(shape_.keys) + block - 1) / block;
    const auto lanes = static_cast<size_t>(panels() * kTileRows);
    std::vector<float> keys(blocks * block * static_cast<size_t>(settings.key_row), NAN);
    std::vector<float> values(blocks * block * static_cast<size_t>(settings.value_row), NAN);
    copy_tile_keys<ScalarTiles>(settings, {{k.data(), shape_.head_dim, 0},
                                           {v.data(), shape_.value_dim, 0},
                                           0,
                                           shape_.keys,
                                           keys.data(),
                                           values.data()});
    std::vector<float> queries(lanes * static_cast<size_t>(settings.key_row), NAN);
    std::vector<float> outs(lanes * static_cast<size_t>(settings.value_row) * 2, NAN);
    std::vector<float> maxima(lanes, NAN);
    std::vector<float> sums(2 * lanes * ScalarTiles::kLanes, NAN);
    std::vector<float> factors(kTileRows, NAN);
    std::vector<float> scores(2 * kTileRows * block, NAN);
    std::vector<uint16_t> weights(2 * kTileRows * block, 0x7fc0);
    ForwardScratch scratch;
    scratch.queries = queries.data();
    scratch.outs = outs.data();
    scratch.maxima = maxima.data();
    scratch.sums = sums.data();
    scratch.factors = factors.data();
    scratch.scores = scores.data();
    scratch.weights = weights.data();
    out.assign(static_cast<size_t>(shape_.rows * shape_.value_dim), 0);
    lse.assign(static_cast<size_t>(shape_.rows), NAN);
    ForwardTile tile;
    tile.q = {q.data(), shape_.head_dim, 0};
    tile.v = {v.data(), shape_.value_dim, 0};
    tile.rows = shape_.rows;
    tile.key_begin = begins.data();
    tile.key_end = ends.data();
    tile.key_copy = keys.data();
    tile.value_copy = values.data();
    tile.out = {out.data(), shape_.value_dim};
    tile.lse = lse.data();
    forward_on_tiles<ScalarTiles, ArrayWords>(settings, tile, scratch);
  }

  void expect_right() const {
    for (int i = 0; i < shape_.rows; ++i) {
      std::vector<double> weights;
      double sum = 0;
      for (int64_t j = begins[at(i)]; j < ends[at(i)]; ++j) {
        double dot = 0;
        for (int d = 0; d < shape_.head_dim; ++d) {
          dot += double(as_float(q[at(i * shape_.head_dim + d)])) *
                 double(as_float(k[at(static_cast<int>(j) * shape_.head_dim + d)]));
        }
        weights.push_back(std::exp(0.3 * dot));
        sum += weights.back();
      }
      if (weights.empty()) {
        EXPECT_EQ(lse[at(i)], -std::numeric_limits<float>::infinity());
      } else {
        const double expected = std::log(sum);
        EXPECT_NEAR(lse[at(i)], expected, 2e-5 + 2e-7 * std::fabs(expected)) << "row " << i;
      }
      for (int d = 0; d < shape_.value_dim; ++d) expect_element(i, d, weights, sum);
    }
  }

  std::vector<uint16_t> q, k, v, out;
  std::vector<int64_t> begins, ends;
  std::vector<float> lse;

 private:
  static size_t at(int index) { return static_cast<size_t>(index); }

  void expect_element(int row, int d, const std::vector<double>& weights, double sum) const {
    double value = 0;
    double size = 0;
    for (size_t j = 0; j < weights.size(); ++j) {
      const auto key = begins[at(row)] + static_cast<int64_t>(j);
      const double term =
          weights[j] * double(as_float(v[at(static_cast<int>(key) * shape_.value_dim + d)]));
      value += term / sum;
      size += std::fabs(term) / sum;
    }
    const double got = double(as_float(out[at(row * shape_.value_dim + d)]));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(got)) << row << ", " << d;
      return;
    }
    EXPECT_NEAR(got, value, 0x1p-8 * (std::fabs(value) + size)) << row << ", " << d;
  }

  Shape shape_;
};

TEST(TileForward, IsRightForAnyShape) {
  for (const Shape& shape :
       {Shape{32, 128, 32, 32, false}, Shape{45, 300, 64, 64, false}, Shape{64, 200, 64, 64, true},
        Shape{16, 70, 40, 33, false}, Shape{100, 100, 128, 96, true},
        Shape{70, 300, 96, 128, false}, Shape{40, 2500, 256, 224, false},
        Shape{40, 50, 33, 16, true}, Shape{70, 40, 17, 64, true}, Shape{33, 1, 64, 64, false},
        Shape{20, 0, 64, 64, false}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " rows, " << shape.keys << " keys, "
                                    << shape.head_dim << " x " << shape.value_dim);
    Sample sample(shape);
    sample.run();
    sample.expect_right();
  }
}

TEST(TileForward, KeepsInvisibleNaNOutAndVisibleIn) {
  for (const int dim : {32, 96}) {
    Sample sample({64, 128, dim, dim, true});
    sample.v[static_cast<size_t>(100 * dim + 5)] = as_bf16(static_cast<float>(kNaN));
    sample.k[static_cast<size_t>(110 * dim + 1)] = as_bf16(std::numeric_limits<float>::infinity());
    sample.run();
    const auto is_nan = [&](int row, int d) {
      return std::isnan(as_float(sample.out[static_cast<size_t>(row * dim + d)]));
    };
    for (int row = 0; row < 64; ++row) {
      EXPECT_EQ(is_nan(row, 5), row + 64 >= 100) << row;
      if (row + 64 < 110) {
        EXPECT_FALSE(is_nan(row, 6)) << row;
      }
    }
  }
}

// Above the references of the first keys: weighed again, and what was summed before scaled.
TEST(TileForward, FollowsAMaximumThatRises) {
  for (const int dim : {32, 96}) {
    for (const int rows : {32, 64}) {
      Sample sample({rows, 300, dim, dim, false});
      for (int key = 0; key < 300; ++key) {  // later keys weigh more and more
        for (int d = 0; d < dim; ++d) {
          auto& word = sample.k[static_cast<size_t>(key * dim + d)];
          word = as_bf16(as_float(word) * static_cast<float>(key) / 8);
        }
      }
      sample.run();
      sample.expect_right();
    }
  }
}

// Far from 0 the rounding of scale times score is larger than any score may differ by.
TEST(TileForward, HoldsHugeEqualScores) {
  for (const size_t dim : {size_t{32}, size_t{96}}) {
    for (const float size : {-1e30f, 1e30f, -6e5f, 3e6f}) {
      Sample sample({32, 170, static_cast<int>(dim), 32, false});
      for (size_t i = 0; i < sample.k.size(); ++i) {
        sample.k[i] = as_bf16(i % dim == 0 ? size : 5.0f);
        if (i < sample.q.size()) sample.q[i] = as_bf16(i % dim == 0 ? 1.0f : 0.0f);
      }
      for (size_t i = 0; i < sample.v.size(); ++i) {
        sample.v[i] = as_bf16(i < sample.v.size() / 2 ? 1.0f : 2.0f);
      }
      sample.run();
      for (const uint16_t word : sample.out) ASSERT_EQ(as_float(word), 1.5f) << size;
    }
  }
}

}  // namespace
}  // namespace tilewise::cpu
