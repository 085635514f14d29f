// The dropout factors of a panel against semantics/philox.h, pair by pair.
#include "cpu/dropout.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "cpu/simd_scalar.h"

namespace tilewise::cpu {
namespace {

TEST(DropoutLanes, AreThoseOfTheFormula) {
  Settings settings;
  settings.dropout = semantics::make_dropout(0.4, 0x123456789abcdef0u, 77);
  constexpr int kW = kWidth<Scalar>;
  GroupLane lanes[2 * kW];
  for (int lane = 0; lane < 2 * kW; ++lane) lanes[lane] = {lane / 3, lane % 3, 0, 0};
  Tile tile;
  tile.first_row = (int64_t{1} << 31) - 2;
  tile.dropout_head = 41;
  for (const bool grouped : {false, true}) {
    tile.lanes = grouped ? lanes : nullptr;
    for (const auto& [begin, end] :
         std::initializer_list<std::pair<int, int>>{{0, 8}, {3, 4}, {5, 22}, {4, 7}}) {
      std::vector<float> keep(static_cast<size_t>((end - begin) * kW), -1.0f);
      fill_keep<Scalar>(settings, tile, {begin, end, true}, 1, keep.data());
      for (int key = begin; key < end; ++key) {
        for (int lane = 0; lane < kW; ++lane) {
          const GroupLane at = lane_of(tile, kW + lane);
          const bool kept = settings.dropout.keeps(
              tile.dropout_head + static_cast<uint64_t>(at.head), tile.first_row + at.row, key);
          EXPECT_EQ(keep[static_cast<size_t>((key - begin) * kW + lane)],
                    kept ? settings.dropout.keep_scale : 0.0f)
              << "key " << key << " lane " << lane;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cpu
