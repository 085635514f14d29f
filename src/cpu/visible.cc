// The slow path of partly masked tiles that hold NaN or infinities: products over visible pairs
// only, one by one, so that nothing invisible is multiplied by a weight of 0.
#include "cpu/forward.h"

namespace tilewise::cpu {

void add_visible_values(const Settings& settings, const Tile& tile, const PanelKeys& keys,
                        int first_lane, int width, const float* weights, const Rows& values,
                        float* out) {
  for (int lane = 0; lane < width; ++lane) {
    const int64_t* const begin = tile.key_begin + first_lane + lane;
    const int64_t* const end = tile.key_end + first_lane + lane;
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      if (j < *begin || j >= *end) continue;
      const float weight = weights[(j - keys.begin) * width + lane];
      const float* const value = row_of(values, j - keys.begin);
      for (int d = 0; d < settings.value_dim; ++d)
        out[int64_t{d} * width + lane] += weight * value[d];
    }
  }
}

}  // namespace tilewise::cpu
