// Backward on matrix tiles over plain arrays instead of AMX registers, against naive loops: layouts
// of tiles, masks, idle rows, ragged sizes, ranges of keys, and NaN where no row may see it.
#include "cpu/tile_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tile_arrays.h"

namespace tilewise::cpu {
namespace {

using Kernel = BackwardOnTiles<ScalarTiles, ArrayWords>;

struct Shape {
  int rows;
  int keys;  // of the sequence
  int range_begin;
  int range_end;
  int head_dim;
  int value_dim;
  bool causal;
};

class Sample {
 public:
  explicit Sample(const Shape& shape) : shape_(shape) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<uint16_t>& words, int count) {
      for (int i = 0; i < count; ++i) words.push_back(as_bf16(normal(random)));
    };
    fill(q, shape.rows * shape.head_dim);
    fill(k, shape.keys * shape.head_dim);
    fill(v, shape.keys * shape.value_dim);
    fill(d_out, shape.rows * shape.value_dim);
    for (int row = 0; row < Kernel::kRows; ++row) {
      const int real = std::min(row, shape.rows - 1);
      begins.push_back(0);
      ends.push_back(shape.causal ? std::max(0, shape.keys - shape.rows + real + 1) : shape.keys);
      idle.push_back(row < shape.rows ? 0 : 1);
      delta.push_back(normal(random));
    }
  }

  void run() {
    fill_lse();
    const int64_t head = (shape_.head_dim + 31) / 32 * 32;
    const int64_t value = (shape_.value_dim + 31) / 32 * 32;
    const int64_t range = (shape_.range_end - shape_.range_begin + 31) / 32 * 32;
    Settings settings;
    settings.element = Element::bf16;
    settings.head_dim = shape_.head_dim;
    settings.value_dim = shape_.value_dim;
    settings.scale = kScale;
    std::vector<float> keys(at(range * head), NAN);
    std::vector<float> values(at(range * value / 2), NAN);
    copy_tile_range<ScalarTiles>(settings, {{k.data(), shape_.head_dim, 0},
                                            {v.data(), shape_.value_dim, 0},
                                            shape_.range_begin,
                                            shape_.range_end,
                                            keys.data(),
                                            values.data()});
    constexpr int64_t kRows = Kernel::kRows;
    std::vector<float> queries(at(kRows * head / 2), NAN), query_rows(queries);
    std::vector<float> d_outs(at(kRows * value / 2), NAN), d_out_rows(d_outs);
    std::vector<float> d_queries(at(kRows * head), NAN), lse_log2(at(kRows), NAN), deltas(lse_log2);
    std::vector<float> weights(at(kRows * Kernel::kKeys), NAN), d_scores(weights);
    std::vector<uint16_t> words(at(Kernel::kWords), 0x7fc0);
    d_k.assign(at(range * head), 0);
    d_v.assign(at(range * value), 0);
    d_q.assign(q.size(), 0);
    BackwardScratch scratch;
    scratch.queries = queries.data();
    scratch.query_rows = query_rows.data();
    scratch.d_outs = d_outs.data();
    scratch.d_out_rows = d_out_rows.data();
    scratch.d_queries = d_queries.data();
    scratch.lse_log2 = lse_log2.data();
    scratch.delta = deltas.data();
    scratch.weights = weights.data();
    scratch.d_scores = d_scores.data();
    scratch.words = words.data();
    BackwardTile tile;
    tile.q = {q.data(), shape_.head_dim, 0};
    tile.d_out = {d_out.data(), shape_.value_dim, 0};
    tile.rows = shape_.rows;
    tile.key_begin = begins.data();
    tile.key_end = ends.data();
    tile.idle = idle.data();
    tile.lse = lse.data();
    tile.delta = delta.data();
    tile.range_begin = shape_.range_begin;
    tile.range_end = shape_.range_end;
    tile.keys = keys.data();
    tile.values = values.data();
    tile.d_k = d_k.data();
    tile.d_v = d_v.data();
    tile.d_q = {d_q.data(), shape_.head_dim};
    backward_on_tiles<ScalarTiles, ArrayWords>(settings, tile, scratch);
    add_tile_d_q<ScalarTiles, ArrayWords>(settings, tile, scratch);
  }

  // Against loops in double over the pairs of the range; `bound` of what the terms of a sum may be
  // off by, in their sizes.
  void expect_right() const {
    Gradients exact(*this);
    const int64_t head = (shape_.head_dim + 31) / 32 * 32;
    const int64_t value = (shape_.value_dim + 31) / 32 * 32;
    for (int j = 0; j < shape_.range_end - shape_.range_begin; ++j) {
      for (int d = 0; d < shape_.head_dim; ++d) {
        expect_near(d_k[at(j * head + d)], exact.d_k[at(j * shape_.head_dim + d)], "d_k", j, d);
      }
      for (int d = 0; d < shape_.value_dim; ++d) {
        expect_near(d_v[at(j * value + d)], exact.d_v[at(j * shape_.value_dim + d)], "d_v", j, d);
      }
    }
    for (int i = 0; i < shape_.rows; ++i) {
      for (int d = 0; d < shape_.head_dim; ++d) {
        const size_t index = at(i * shape_.head_dim + d);
        expect_near(d_q[index], exact.d_q[index], "d_q", i, d);
      }
    }
  }

  std::vector<uint16_t> q, k, v, d_out;
  std::vector<int64_t> begins, ends;
  std::vector<unsigned char> idle;
  std::vector<float> lse, delta, d_q, d_k, d_v;

 private:
  static constexpr double kScale = 0.3;

  struct Sum {
    double value = 0;
    double size = 0;
    void add(double weight, double weight_size, double term) {
      value += weight * term;
      size += weight_size * std::fabs(term);
    }
  };
  struct Gradients {
    explicit Gradients(const Sample& sample) {
      const Shape& shape = sample.shape_;
      d_q.resize(at(shape.rows * shape.head_dim));
      d_k.resize(at((shape.range_end - shape.range_begin) * shape.head_dim));
      d_v.resize(at((shape.range_end - shape.range_begin) * shape.value_dim));
      for (int i = 0; i < shape.rows; ++i) {
        for (int j = shape.range_begin; j < shape.range_end; ++j) {
          if (sample.sees(i, j)) add(sample, i, j);
        }
      }
    }
    void add(const Sample& sample, int i, int j) {
      const Shape& shape = sample.shape_;
      const double p = std::exp(sample.score(i, j) - double(sample.lse[at(i)]));
      double d_weight = 0;
      double d_weight_size = 0;
      for (int d = 0; d < shape.value_dim; ++d) {
        const double term = double(as_float(sample.d_out[at(i * shape.value_dim + d)])) *
                            double(as_float(sample.v[at(j * shape.value_dim + d)]));
        d_weight += term;
        d_weight_size += std::fabs(term);
      }
      const double delta = double(sample.delta[at(i)]);
      const double ds = p * (d_weight - delta);
      const double ds_size = p * (d_weight_size + std::fabs(delta));
      const int row = j - shape.range_begin;
      for (int d = 0; d < shape.value_dim; ++d) {
        d_v[at(row * shape.value_dim + d)].add(
            p, p, double(as_float(sample.d_out[at(i * shape.value_dim + d)])));
      }
      for (int d = 0; d < shape.head_dim; ++d) {
        d_k[at(row * shape.head_dim + d)].add(
            ds, ds_size, double(as_float(sample.q[at(i * shape.head_dim + d)])));
        d_q[at(i * shape.head_dim + d)].add(kScale * ds, kScale * ds_size,
                                            double(as_float(sample.k[at(j * shape.head_dim + d)])));
      }
    }
    std::vector<Sum> d_q, d_k, d_v;
  };

  static size_t at(int64_t index) { return static_cast<size_t>(index); }
  bool sees(int i, int j) const {
    return idle[at(i)] == 0 && j >= begins[at(i)] && j < ends[at(i)];
  }
  double score(int i, int j) const {
    double dot = 0;
    for (int d = 0; d < shape_.head_dim; ++d) {
      dot += double(as_float(q[at(i * shape_.head_dim + d)])) *
             double(as_float(k[at(j * shape_.head_dim + d)]));
    }
    return kScale * dot;
  }
  void fill_lse() {
    for (int i = 0; i < shape_.rows; ++i) {
      double sum = 0;
      for (int64_t j = begins[at(i)]; j < ends[at(i)]; ++j) {
        sum += std::exp(score(i, static_cast<int>(j)));
      }
      lse.push_back(static_cast<float>(std::log(sum)));
      if (sum == 0) idle[at(i)] = 1;
    }
  }
  static void expect_near(float got, const Sum& sum, const char* what, int row, int d) {
    if (!std::isfinite(sum.value)) {
      EXPECT_FALSE(std::isfinite(got)) << what << " " << row << ", " << d;
      return;
    }
    EXPECT_NEAR(got, sum.value, 0x1p-8 * sum.size + 1e-12) << what << " " << row << ", " << d;
  }

  Shape shape_;
};

TEST(TileBackward, IsRightForAnyShape) {
  for (const Shape& shape :
       {Shape{64, 128, 0, 128, 32, 32, false}, Shape{64, 300, 128, 256, 64, 64, false},
        Shape{45, 77, 0, 77, 64, 64, true}, Shape{16, 70, 64, 70, 40, 33, true},
        Shape{64, 200, 0, 200, 128, 96, true}, Shape{33, 40, 0, 40, 96, 128, false},
        Shape{64, 40, 0, 40, 17, 64, true}, Shape{20, 1, 0, 1, 64, 64, false}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " rows, " << shape.keys << " keys, "
                                    << shape.head_dim << " x " << shape.value_dim);
    Sample sample(shape);
    sample.run();
    sample.expect_right();
  }
}

TEST(TileBackward, LeavesIdleRowsOut) {
  Sample sample({64, 100, 0, 100, 64, 64, false});
  sample.idle[3] = sample.idle[40] = 1;
  sample.run();
  sample.expect_right();
}

TEST(TileBackward, KeepsInvisibleNaNOutAndVisibleIn) {
  Sample sample({64, 96, 0, 96, 64, 32, true});
  sample.k[90 * 64 + 5] = as_bf16(NAN);  // rows from 58 on see it
  sample.v[80 * 32 + 1] = as_bf16(std::numeric_limits<float>::infinity());
  sample.d_out[2 * 32 + 7] = as_bf16(NAN);  // keys up to 34 see it
  sample.run();
  sample.expect_right();
}

}  // namespace
}  // namespace tilewise::cpu
