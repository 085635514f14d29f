// Dropout factors of a panel: Philox words are drawn four keys at a time.
#include "cpu/forward.h"

namespace tilewise::cpu {

void fill_keep(const Settings& settings, const Tile& tile, const PanelKeys& keys, int first_lane,
               int width, float* keep) {
  const semantics::Dropout& dropout = settings.dropout;
  for (int lane = 0; lane < width; ++lane) {
    const GroupLane own = lane_of(tile, first_lane + lane);
    const auto row = static_cast<uint32_t>(tile.first_row + own.row);
    const auto head = static_cast<uint32_t>(tile.dropout_head + static_cast<uint64_t>(own.head));
    semantics::PhiloxWords words{};
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      if (j == keys.begin || j % 4 == 0) {
        words = semantics::philox4x32_10(static_cast<uint32_t>(j >> 2), row, head, dropout.offset,
                                         dropout.seed);
      }
      keep[(j - keys.begin) * width + lane] =
          words.word[j & 3] >= dropout.threshold ? dropout.keep_scale : 0.0f;
    }
  }
}

}  // namespace tilewise::cpu
