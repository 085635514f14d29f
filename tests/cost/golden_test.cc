// The published figures, to the printed digit: N = 4096 and 8192, d = 64, fp16, one head, fast
// memory for 65,536 numbers, 300 TFLOP/s and 2 TB/s; and the A100 with N = 16K.
#include <gtest/gtest.h>

#include <cstdio>

#include "tilewise/cost.hpp"

namespace tilewise {
namespace {

AttentionShape one_head(int64_t length, int64_t dim) {
  AttentionShape shape;
  shape.q_len = shape.kv_len = length;
  shape.head_dim = shape.value_dim = dim;
  shape.dtype = DType::f16;
  return shape;
}

Cost example(int64_t length, Schedule schedule) {
  return cost(one_head(length, 64), {schedule, Accounting::simple},
              machine_preset("example", DType::f16));
}

// As a document prints it.
std::string one_digit(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}
std::string megabytes(const Cost& c) { return one_digit(c.bytes() * 1e-6); }
std::string microseconds(double seconds) { return one_digit(seconds * 1e6); }

TEST(Golden, MatrixOfOneHead) {
  const Cost c = example(4096, Schedule::standard);
  EXPECT_EQ(c.all_pairs, 16777216);
  EXPECT_EQ(c.matrix_bytes, 32.0 * 1024 * 1024);
}

TEST(Golden, StandardTraffic) {
  const Cost c = example(4096, Schedule::standard);
  EXPECT_EQ(one_digit(4 * c.matrix_bytes * 1e-6), "134.2");
  EXPECT_EQ(one_digit((c.bytes() - 4 * c.matrix_bytes) * 1e-6), "2.1");
  EXPECT_EQ(megabytes(c), "136.3");
  EXPECT_EQ(megabytes(example(8192, Schedule::standard)), "541.1");
}

TEST(Golden, TiledTraffic) {
  const Cost c = example(4096, Schedule::tiled_kv_outside);
  EXPECT_EQ(c.tile_keys, 256);
  EXPECT_EQ(c.passes, 16);
  EXPECT_EQ(megabytes(c), "26.2");
  EXPECT_EQ(megabytes(example(8192, Schedule::tiled_kv_outside)), "102.8");
  EXPECT_EQ(one_digit(example(4096, Schedule::standard).bytes() / c.bytes()), "5.2");
  EXPECT_LE(c.working_set_bytes, 2 * 65536);
}

TEST(Golden, TimesAndVerdicts) {
  const Cost standard = example(4096, Schedule::standard);
  const Cost tiled = example(4096, Schedule::tiled_kv_outside);
  EXPECT_EQ(microseconds(standard.compute_s), "14.3");
  EXPECT_EQ(microseconds(tiled.compute_s), "14.3");
  EXPECT_EQ(microseconds(standard.memory_s), "68.2");
  EXPECT_EQ(microseconds(tiled.memory_s), "13.1");
  EXPECT_EQ(standard.bound, Bound::memory);
  EXPECT_EQ(tiled.bound, Bound::compute);
}

TEST(Golden, BalanceAndSoftmax) {
  EXPECT_EQ(machine_preset("example", DType::f16).balance(), 150);
  EXPECT_EQ(softmax_intensity(DType::f16), 1.25);
}

// "268M entries", "512 MB at fp16" (mebibytes), "over 32 GB" (34.4; 32 gibibytes), "about 20 MB".
TEST(Golden, SixteenThousandTokensOnTheA100) {
  AttentionShape shape = one_head(16384, 128);
  const MachineRoofs a100 = machine_preset("a100", DType::f16);
  const Cost head = cost(shape, {Schedule::standard}, a100);
  EXPECT_EQ(one_digit(head.all_pairs * 1e-6), "268.4");
  EXPECT_EQ(head.matrix_bytes, 512.0 * 1024 * 1024);
  shape.q_heads = shape.kv_heads = 64;
  const Cost layer = cost(shape, {Schedule::standard}, a100);
  EXPECT_EQ(layer.matrix_bytes, 32.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(one_digit(layer.matrix_bytes * 1e-9), "34.4");
  EXPECT_EQ(a100.cores, 108);
  EXPECT_EQ(a100.fast_bytes, 192 * 1024);
  EXPECT_EQ(one_digit(a100.fast_bytes * static_cast<double>(a100.cores) / (1024 * 1024)), "20.2");
  EXPECT_EQ(one_digit(a100.bytes_per_s * 1e-12), "2.0");
  EXPECT_EQ(one_digit(a100.fast_bytes_per_s * 1e-12), "19.5");
}

}  // namespace
}  // namespace tilewise
