// mask.h against the definition, pair by pair, over all small sizes and over extreme windows. The
// kernels and the reference share mask.h, so this test is what keeps a bug in it from hiding.
#include "semantics/mask.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace tilewise::semantics {
namespace {

using Wide = __int128;

// The definition of docs/contracts.md, without any of mask.h's arithmetic.
bool sees(const MaskRule& rule, Wide q_len, Wide kv_len, Wide i, Wide j) {
  Wide off = 0;
  if (rule.alignment == 0) off = kv_len - q_len;
  if (rule.alignment == 2) off = rule.offset;
  if (j < 0 || j >= kv_len) return false;
  if (rule.left >= 0 && j < i + off - rule.left) return false;
  if (rule.right >= 0 && j > i + off + rule.right) return false;
  return true;
}

std::string text_of(const MaskRule& rule, i64 q_len, i64 kv_len) {
  return "left=" + std::to_string(rule.left) + " right=" + std::to_string(rule.right) +
         " alignment=" + std::to_string(rule.alignment) + " offset=" + std::to_string(rule.offset) +
         " q_len=" + std::to_string(q_len) + " kv_len=" + std::to_string(kv_len);
}

// Calls check(rule, q_len, kv_len) for every small mask and size.
template <class Check>
void for_small_masks(i64 longest, const Check& check) {
  for (i64 q_len = 1; q_len <= longest; ++q_len) {
    for (i64 kv_len = 0; kv_len <= longest; ++kv_len) {
      for (i64 left = -1; left <= longest; ++left) {
        for (i64 right = -1; right <= longest; ++right) {
          check(MaskRule{left, right, 0, 0}, q_len, kv_len);
          check(MaskRule{left, right, 1, 0}, q_len, kv_len);
          for (i64 offset = -longest - 2; offset <= longest + 2; offset += 2) {
            check(MaskRule{left, right, 2, offset}, q_len, kv_len);
          }
        }
      }
    }
  }
}

TEST(Mask, RowsSeeWhatTheDefinitionSays) {
  for_small_masks(7, [](const MaskRule& rule, i64 q_len, i64 kv_len) {
    const Band band = make_band(rule, q_len, kv_len);
    for (i64 i = 0; i < q_len; ++i) {
      const KeyRange range = band.keys_of_row(i);
      i64 count = 0;
      for (i64 j = -2; j < kv_len + 2; ++j) {
        const bool expected = sees(rule, q_len, kv_len, i, j);
        count += expected ? 1 : 0;
        ASSERT_EQ(band.visible(i, j), expected)
            << text_of(rule, q_len, kv_len) << " i=" << i << " j=" << j;
      }
      ASSERT_EQ(range.count(), count) << text_of(rule, q_len, kv_len) << " i=" << i;
      ASSERT_EQ(range.empty(), count == 0);
      ASSERT_GE(range.begin, 0);
      ASSERT_LE(range.end, kv_len);
    }
  });
}

TEST(Mask, TileRangesHoldEveryVisiblePairAndNoMore) {
  for_small_masks(5, [](const MaskRule& rule, i64 q_len, i64 kv_len) {
    const Band band = make_band(rule, q_len, kv_len);
    for (i64 begin = 0; begin < q_len; ++begin) {
      for (i64 end = begin + 1; end <= q_len; ++end) {
        const KeyRange keys = band.keys_of_rows(begin, end);
        i64 first = kv_len, last = -1;
        for (i64 i = begin; i < end; ++i) {
          for (i64 j = 0; j < kv_len; ++j) {
            if (!sees(rule, q_len, kv_len, i, j)) continue;
            first = j < first ? j : first;
            last = j > last ? j : last;
          }
        }
        const std::string text = text_of(rule, q_len, kv_len) + " rows " + std::to_string(begin) +
                                 ".." + std::to_string(end);
        if (last < 0) {
          ASSERT_TRUE(keys.empty()) << text;
        } else {
          ASSERT_EQ(keys.begin, first) << text;
          ASSERT_EQ(keys.end, last + 1) << text;
        }
      }
    }
  });
}

TEST(Mask, RowsOfKeysHoldEveryVisiblePairAndNoMore) {
  for_small_masks(5, [](const MaskRule& rule, i64 q_len, i64 kv_len) {
    const Band band = make_band(rule, q_len, kv_len);
    for (i64 begin = 0; begin < kv_len; ++begin) {
      for (i64 end = begin + 1; end <= kv_len; ++end) {
        const KeyRange rows = band.rows_of_keys(begin, end);
        i64 first = q_len, last = -1;
        for (i64 i = 0; i < q_len; ++i) {
          for (i64 j = begin; j < end; ++j) {
            if (!sees(rule, q_len, kv_len, i, j)) continue;
            first = i < first ? i : first;
            last = i > last ? i : last;
          }
        }
        const std::string text = text_of(rule, q_len, kv_len) + " keys " + std::to_string(begin) +
                                 ".." + std::to_string(end);
        if (last < 0) {
          ASSERT_TRUE(rows.empty()) << text;
        } else {
          ASSERT_EQ(rows.begin, first) << text;
          ASSERT_EQ(rows.end, last + 1) << text;
        }
      }
    }
  });
}

TEST(Mask, ClassifyIsFullOnlyWhenAllAndEmptyOnlyWhenNone) {
  for_small_masks(5, [](const MaskRule& rule, i64 q_len, i64 kv_len) {
    const Band band = make_band(rule, q_len, kv_len);
    for (i64 rows = 0; rows < q_len; ++rows) {
      for (i64 rows_end = rows + 1; rows_end <= q_len; ++rows_end) {
        for (i64 keys = 0; keys < kv_len; ++keys) {
          for (i64 keys_end = keys + 1; keys_end <= kv_len; ++keys_end) {
            i64 visible = 0;
            for (i64 i = rows; i < rows_end; ++i) {
              for (i64 j = keys; j < keys_end; ++j) {
                visible += sees(rule, q_len, kv_len, i, j) ? 1 : 0;
              }
            }
            const TileClass expected = visible == 0 ? TileClass::empty
                                       : visible == (rows_end - rows) * (keys_end - keys)
                                           ? TileClass::full
                                           : TileClass::partial;
            ASSERT_EQ(band.classify(rows, rows_end, keys, keys_end), expected)
                << text_of(rule, q_len, kv_len) << " rows " << rows << ".." << rows_end << " keys "
                << keys << ".." << keys_end;
          }
        }
      }
    }
  });
}

TEST(Mask, ExtremeWindowsAndOffsetsDoNotOverflow) {
  const i64 windows[] = {
      -1, 0, 1, INT32_MAX - 1LL, INT32_MAX, 1LL << 58, 1LL << 60, INT64_MAX - 1, INT64_MAX};
  const i64 offsets[] = {INT64_MIN, INT64_MIN + 1, -(1LL << 58), -INT32_MAX, -1, 0,
                         1,         INT32_MAX,     1LL << 58,    INT64_MAX};
  for (const i64 left : windows) {
    for (const i64 right : windows) {
      for (int alignment = 0; alignment < 3; ++alignment) {
        for (const i64 offset : offsets) {
          // Windows from 2^58 on count as unbounded; only offsets of that size could tell.
          const bool far = offset < -(1LL << 57) || offset > (1LL << 57);
          if (far && (left >= 1LL << 58 || right >= 1LL << 58)) continue;
          const MaskRule rule{left, right, alignment, alignment == 2 ? offset : 0};
          const Band band = make_band(rule, 3, 5);
          for (i64 i = 0; i < 3; ++i) {
            for (i64 j = 0; j < 5; ++j) {
              ASSERT_EQ(band.visible(i, j), sees(rule, 3, 5, i, j))
                  << text_of(rule, 3, 5) << " i=" << i << " j=" << j;
            }
          }
          const KeyRange rows = band.rows_of_keys(0, 5);
          for (i64 i = 0; i < 3; ++i) {
            if (band.keys_of_row(i).empty()) continue;
            ASSERT_GE(i, rows.begin);
            ASSERT_LT(i, rows.end);
          }
        }
      }
    }
  }
}

TEST(Mask, LengthsBeyond32BitsKeepTheDiagonal) {
  const i64 q_len = (1LL << 33) + 1;
  const Band band = make_band({-1, 0, 0, 0}, q_len, q_len + 7);
  EXPECT_EQ(band.keys_of_row(q_len - 1).end, q_len + 7);
  EXPECT_EQ(band.keys_of_row(0).end, 8);
  EXPECT_EQ(band.rows_of_keys(q_len + 6, q_len + 7).begin, q_len - 1);
  EXPECT_EQ(band.distance(0, q_len), q_len - 7);
}

TEST(Mask, DistanceIsSymmetricAboutTheDiagonal) {
  const Band band = make_band({-1, -1, 0, 0}, 2, 5);  // off = 3
  EXPECT_EQ(band.distance(0, 3), 0);
  EXPECT_EQ(band.distance(0, 0), 3);
  EXPECT_EQ(band.distance(0, 4), 1);
  EXPECT_EQ(band.distance(1, 4), 0);
}

}  // namespace
}  // namespace tilewise::semantics
