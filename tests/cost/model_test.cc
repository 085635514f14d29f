// The IO model beyond the published example: masks, heads, packed batches, backward, decode, tile
// sizes, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "cost/pairs.h"
#include "tilewise/cost.hpp"

namespace tilewise {
namespace {

AttentionShape shape_of(int64_t q_len, int64_t kv_len, int64_t dim) {
  AttentionShape shape;
  shape.q_len = q_len;
  shape.kv_len = kv_len;
  shape.head_dim = shape.value_dim = dim;
  return shape;
}

MachineRoofs h100_with_cache() { return machine_preset("h100", DType::f16); }
MachineRoofs h100() {
  MachineRoofs machine = h100_with_cache();
  machine.cache_bytes = 0;
  return machine;
}

constexpr Schedule kAll[] = {Schedule::standard,          Schedule::tiled_kv_outside,
                             Schedule::tiled_q_outside,   Schedule::decode,
                             Schedule::standard_backward, Schedule::recompute_backward};

double bytes_of(const Cost& c, const std::string& tensor) {
  double bytes = 0;
  for (const Traffic& item : c.traffic) {
    if (item.tensor == tensor) bytes += item.read_bytes + item.write_bytes;
  }
  return bytes;
}

// Every mask at every small size, pair by pair.
TEST(Pairs, MatchTheDefinition) {
  const semantics::MaskRule rules[] = {{-1, -1, 0, 0}, {-1, 0, 0, 0}, {-1, 0, 1, 0}, {-1, 0, 2, 3},
                                       {2, 1, 0, 0},   {0, 0, 0, 0},  {3, -1, 1, 0}, {1, 2, 2, -4}};
  for (const semantics::MaskRule& rule : rules) {
    for (int q_len = 0; q_len < 9; ++q_len) {
      for (int kv_len = 0; kv_len < 9; ++kv_len) {
        const semantics::Band band = semantics::make_band(rule, q_len, kv_len);
        double pairs = 0;
        for (int i = 0; i < q_len; ++i) {
          for (int j = 0; j < kv_len; ++j) pairs += band.visible(i, j) ? 1 : 0;
        }
        EXPECT_EQ(cost_model::visible_pairs(band), pairs);
      }
    }
  }
}

// Walks count whole tiles that hold at least the visible pairs; tiles of one pair count them all.
TEST(Pairs, WalksCoverWhatIsVisible) {
  const semantics::MaskRule rules[] = {{-1, -1, 0, 0}, {-1, 0, 0, 0}, {4, 2, 0, 0}, {-1, 0, 1, 0}};
  for (const semantics::MaskRule& rule : rules) {
    for (const int q_len : {1, 7, 16, 33}) {
      for (const int kv_len : {1, 8, 31}) {
        const semantics::Band band = semantics::make_band(rule, q_len, kv_len);
        const double visible = cost_model::visible_pairs(band);
        EXPECT_EQ(cost_model::walk_query_tiles(band, 1, 1).pairs, visible);
        EXPECT_EQ(cost_model::walk_key_tiles(band, 1, 1).pairs, visible);
        for (const int tile : {3, 8}) {
          for (const auto& walk : {cost_model::walk_query_tiles(band, tile, tile),
                                   cost_model::walk_key_tiles(band, tile, tile)}) {
            EXPECT_GE(walk.pairs, visible);
            EXPECT_LE(walk.pairs, static_cast<double>(q_len) * kv_len);
          }
        }
      }
    }
  }
}

TEST(Model, CausalHalvesTheUsefulWork) {
  AttentionShape shape = shape_of(4096, 4096, 64);
  shape.mask = Mask::causal();
  const Cost standard = cost(shape, {Schedule::standard}, h100());
  const Cost tiled = cost(shape, {Schedule::tiled_q_outside}, h100());
  EXPECT_EQ(standard.visible_pairs, 4096.0 * 4097 / 2);
  EXPECT_EQ(standard.executed_pairs, 4096.0 * 4096);
  EXPECT_EQ(standard.useful_flops, 4 * 64 * standard.visible_pairs);
  EXPECT_EQ(tiled.useful_flops, standard.useful_flops);
  EXPECT_LT(tiled.executed_flops, 0.6 * standard.executed_flops);
  EXPECT_GE(tiled.executed_flops, tiled.useful_flops);
}

TEST(Model, WindowMakesTiledTrafficLinear) {
  const auto bytes = [](int64_t length) {
    AttentionShape shape = shape_of(length, length, 64);
    shape.mask = Mask::window(255, 0);
    return cost(shape, {Schedule::tiled_q_outside}, h100()).bytes();
  };
  EXPECT_NEAR(bytes(65536) / bytes(32768), 2, 0.02);
}

TEST(Model, BatchAndHeadsMultiply) {
  AttentionShape shape = shape_of(1000, 700, 64);
  AttentionShape larger = shape;
  larger.batch = 3;
  larger.q_heads = larger.kv_heads = 5;
  for (const Schedule schedule : kAll) {
    if (schedule == Schedule::decode) continue;  // splits depend on batch and heads
    const Cost one = cost(shape, {schedule}, h100());
    const Cost many = cost(larger, {schedule}, h100());
    EXPECT_DOUBLE_EQ(many.bytes(), 15 * one.bytes()) << name_of(schedule);
    EXPECT_DOUBLE_EQ(many.executed_flops, 15 * one.executed_flops);
    EXPECT_DOUBLE_EQ(many.compulsory_bytes, 15 * one.compulsory_bytes);
  }
}

TEST(Model, PackedBatchIsTheSumOfItsSequences) {
  AttentionShape packed = shape_of(0, 0, 64);
  packed.mask = Mask::causal();
  packed.sequences = {{100, 100}, {0, 50}, {777, 1000}};
  for (const Schedule schedule : {Schedule::standard, Schedule::tiled_q_outside}) {
    const ScheduleChoice choice = {schedule, Accounting::full, 64, 64};
    double bytes = 0;
    double pairs = 0;
    for (const SequenceLengths& lengths : packed.sequences) {
      AttentionShape one = packed;
      one.sequences = {lengths};
      bytes += cost(one, choice, h100()).bytes();
      pairs += cost(one, choice, h100()).visible_pairs;
    }
    EXPECT_DOUBLE_EQ(cost(packed, choice, h100()).bytes(), bytes);
    EXPECT_DOUBLE_EQ(cost(packed, choice, h100()).visible_pairs, pairs);
  }
}

TEST(Model, NoScheduleMovesLessThanItMust) {
  for (const Mask& mask : {Mask::none(), Mask::causal()}) {
    AttentionShape shape = shape_of(2048, 2048, 128);
    shape.q_heads = 8;
    shape.kv_heads = 2;
    shape.mask = mask;
    for (const Schedule schedule : kAll) {
      const Cost c = cost(shape, {schedule}, h100());
      EXPECT_GE(c.bytes(), c.compulsory_bytes) << name_of(schedule);
      double listed = 0;
      for (const Traffic& item : c.traffic) listed += item.read_bytes + item.write_bytes;
      EXPECT_DOUBLE_EQ(listed, c.bytes());
      EXPECT_NEAR(c.intensity * c.bytes(), c.executed_flops, 1e-6 * c.executed_flops);
    }
  }
}

TEST(Model, RecomputationTradesOperationsForBytes) {
  const AttentionShape shape = shape_of(8192, 8192, 64);
  const Cost standard = cost(shape, {Schedule::standard_backward}, h100());
  const Cost recompute = cost(shape, {Schedule::recompute_backward}, h100());
  EXPECT_DOUBLE_EQ(recompute.executed_flops, 1.25 * standard.executed_flops);
  EXPECT_EQ(recompute.useful_flops, standard.useful_flops);
  EXPECT_LT(recompute.bytes(), standard.bytes() / 2);
  EXPECT_EQ(standard.bound, Bound::memory);
  const MachineRoofs example = machine_preset("example", DType::f16);
  EXPECT_EQ(cost(shape, {Schedule::standard_backward, Accounting::simple}, example).bound,
            Bound::memory);
  EXPECT_EQ(cost(shape, {Schedule::recompute_backward, Accounting::simple}, example).bound,
            Bound::compute);
  EXPECT_LT(recompute.extra_bytes, standard.extra_bytes / 20);
  // Seven passes over the matrix.
  EXPECT_EQ(bytes_of(standard, "P") + bytes_of(standard, "dP") + bytes_of(standard, "dS"),
            7 * standard.matrix_bytes);
}

TEST(Model, DecodeReadsTheCacheOncePerKvHead) {
  AttentionShape shape = shape_of(1, 32768, 128);
  shape.q_heads = 32;
  shape.kv_heads = 8;
  const Cost decode = cost(shape, {Schedule::decode}, h100());
  EXPECT_EQ(bytes_of(decode, "k"), 8.0 * 32768 * 128 * 2);
  EXPECT_EQ(bytes_of(decode, "v"), 8.0 * 32768 * 128 * 2);
  EXPECT_LT(decode.bytes(), 1.01 * decode.compulsory_bytes);
  EXPECT_EQ(decode.passes, 17);  // 132 cores, 8 kv heads
  EXPECT_EQ(decode.bound, Bound::memory);
  // Tiling wins nothing that counts: the matrix is a row a head.
  const Cost standard = cost(shape, {Schedule::standard}, h100());
  EXPECT_LT(standard.matrix_bytes * 4, 0.06 * standard.bytes());
}

TEST(Model, FullAccountingAddsStatisticsAndWiderSums) {
  const AttentionShape shape = shape_of(4096, 4096, 64);
  const MachineRoofs machine = machine_preset("example", DType::f16);
  const Cost simple = cost(shape, {Schedule::tiled_kv_outside, Accounting::simple}, machine);
  const Cost full = cost(shape, {Schedule::tiled_kv_outside, Accounting::full}, machine);
  EXPECT_EQ(bytes_of(simple, "m, l"), 0);
  EXPECT_EQ(bytes_of(full, "m, l"), 16.0 * 4096 * 2 * 2 * 4);
  EXPECT_EQ(bytes_of(full, "partial out"),
            2 * bytes_of(simple, "out") + 4096.0 * 64 * 4);  // fp32, and read to convert
}

TEST(Model, MatrixMayBeWiderThanTheInputs) {
  AttentionShape shape = shape_of(1024, 1024, 64);
  shape.dtype = DType::bf16;
  ScheduleChoice choice = {Schedule::standard};
  const Cost narrow = cost(shape, choice, h100());
  choice.matrix_dtype = DType::f32;
  EXPECT_EQ(cost(shape, choice, h100()).bytes() - narrow.bytes(), 4 * narrow.matrix_bytes);
}

// Reads that repeat come from the cache when it holds them, and are not lost from the count.
TEST(Cache, SparesRepeatedReads) {
  AttentionShape shape = shape_of(4096, 4096, 64);
  shape.q_heads = shape.kv_heads = 16;
  for (const Schedule schedule :
       {Schedule::tiled_kv_outside, Schedule::tiled_q_outside, Schedule::recompute_backward}) {
    const Cost without = cost(shape, {schedule}, h100());
    const Cost with = cost(shape, {schedule}, h100_with_cache());
    EXPECT_EQ(without.cached_bytes, 0);
    EXPECT_LT(with.bytes(), without.bytes()) << name_of(schedule);
    EXPECT_DOUBLE_EQ(with.bytes() + with.cached_bytes, without.bytes()) << name_of(schedule);
    EXPECT_GE(with.bytes(), with.compulsory_bytes);
  }
  const Cost tiled = cost(shape, {Schedule::tiled_q_outside}, h100_with_cache());
  EXPECT_LT(tiled.bytes(), 1.02 * tiled.compulsory_bytes);
  EXPECT_EQ(tiled.bound, Bound::compute);
}

TEST(Cache, HoldsShortMatricesOnly) {
  const auto bytes = [](int64_t length) {
    AttentionShape shape = shape_of(length, length, 64);
    shape.q_heads = shape.kv_heads = 16;
    const Cost c = cost(shape, {Schedule::standard}, h100_with_cache());
    return c.bytes() / c.compulsory_bytes;
  };
  EXPECT_EQ(bytes(512), 1);
  EXPECT_GT(bytes(4096), 50);
}

// Keys that do not fit are still shared by the tiles that run in step.
TEST(Cache, TilesInStepShareOneRead) {
  const AttentionShape shape = shape_of(1 << 20, 1 << 20, 128);
  const Cost without = cost(shape, {Schedule::tiled_q_outside}, h100());
  const Cost with = cost(shape, {Schedule::tiled_q_outside}, h100_with_cache());
  EXPECT_GT(with.bytes(), 10 * with.compulsory_bytes);
  EXPECT_LT(with.bytes(), without.bytes() / 100);
}

TEST(Tiles, WhatIsChosenFits) {
  for (const int64_t dim : {16, 64, 128, 256}) {
    for (const double fast : {48.0 * 1024, 192.0 * 1024, 1024.0 * 1024}) {
      for (const Schedule schedule :
           {Schedule::tiled_kv_outside, Schedule::tiled_q_outside, Schedule::recompute_backward}) {
        MachineRoofs machine = h100();
        machine.fast_bytes = fast;
        const Cost c = cost(shape_of(100000, 100000, dim), {schedule}, machine);
        EXPECT_LE(c.working_set_bytes, fast) << name_of(schedule) << " d " << dim;
        EXPECT_GE(c.tile_rows, 1);
      }
    }
  }
}

TEST(Tiles, LargestRowsAreLargest) {
  const AttentionShape shape = shape_of(4096, 4096, 128);
  for (const int64_t keys : {16, 64, 128, 256}) {
    ScheduleChoice choice = {Schedule::tiled_q_outside, Accounting::full, 0, keys};
    choice.tile_rows = largest_tile_rows(shape, choice, 227 * 1024);
    EXPECT_LE(working_set_bytes(shape, choice), 227 * 1024);
    ++choice.tile_rows;
    EXPECT_GT(working_set_bytes(shape, choice), 227 * 1024);
  }
}

// Three passes do not overlap: standard attention takes longer than its largest sum where some
// passes wait for memory and others compute, and never less. One pass takes what seconds() says.
TEST(Model, PassesOneAfterAnother) {
  for (const Schedule schedule : kAll) {
    for (const int64_t dim : {64, 256}) {
      const Cost c = cost(shape_of(4096, 4096, dim), {schedule}, h100());
      double flops = 0;
      double exps = 0;
      for (const Work& work : c.work) {
        flops += work.flops;
        exps += work.exps;
      }
      EXPECT_NEAR(flops, c.executed_flops, 1e-9 * c.executed_flops) << name_of(schedule);
      EXPECT_EQ(exps, c.exps) << name_of(schedule);
      EXPECT_GE(c.passes_s, c.seconds() * (1 - 1e-12)) << name_of(schedule);
    }
  }
  MachineRoofs machine = h100();
  machine.exps_per_s = 0;
  machine.flops_per_s = 100 * machine.bytes_per_s;  // the products compute, the softmax waits
  const Cost standard = cost(shape_of(4096, 4096, 256), {Schedule::standard}, machine);
  ASSERT_EQ(standard.work.size(), 3U);
  EXPECT_GT(standard.passes_s, 1.1 * standard.seconds());
  const Cost tiled = cost(shape_of(4096, 4096, 256), {Schedule::tiled_q_outside}, machine);
  EXPECT_DOUBLE_EQ(tiled.passes_s, tiled.seconds());
}

TEST(Model, EmptySizesCostNothing) {
  for (const Schedule schedule : kAll) {
    EXPECT_EQ(cost(shape_of(0, 0, 64), {schedule}, h100()).bytes(), 0) << name_of(schedule);
    EXPECT_EQ(cost(shape_of(5, 0, 64), {schedule}, h100()).executed_flops, 0);
  }
}

TEST(Model, LayerCountsProjectionsAndFeedForward) {
  AttentionShape shape = shape_of(512, 512, 128);
  shape.q_heads = 32;
  shape.kv_heads = 8;
  const double weights = 4096.0 * (4096 + 1024 + 1024 + 4096) + 3.0 * 4096 * 14336;
  EXPECT_DOUBLE_EQ(layer_flops(shape, 4096, 14336), 2 * 512 * weights);
}

void expect_refused(const AttentionShape& shape, const MachineRoofs& machine,
                    const std::string& part) {
  try {
    cost(shape, {Schedule::tiled_q_outside}, machine);
    ADD_FAILURE() << "accepted, expected " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Model, RefusesWhatMakesNoSense) {
  AttentionShape shape = shape_of(8, 8, 0);
  expect_refused(shape, h100(), "shape.head_dim is 0, expected 1 or more");
  shape = shape_of(8, -1, 8);
  expect_refused(shape, h100(), "shape.kv_len is -1");
  shape = shape_of(8, 8, 8);
  shape.q_heads = 3;
  shape.kv_heads = 2;
  expect_refused(shape, h100(), "shape.q_heads is 3, expected a multiple of kv_heads");
  MachineRoofs machine = h100();
  machine.bytes_per_s = 0;
  expect_refused(shape_of(8, 8, 8), machine, "machine.bytes_per_s is 0");
  EXPECT_THROW(machine_preset("z80", DType::f16), Error);
}

}  // namespace
}  // namespace tilewise
