// Which keys a row sees, and which tiles a query tile needs: the one place that decides.
//
//   key j is visible to row i  iff  0 <= j < kv_len  and  i + off - left <= j <= i + off + right
//
// left or right -1 is unbounded on that side; off comes from the alignment (contracts: causal,
// window). The visible keys of a row are one interval, so a tile is empty, full or partial by
// arithmetic on its corners. Used by the reference, the CPU kernels and the GPU kernels.
#pragma once

#include "semantics/types.h"

namespace tilewise {
namespace semantics {

// Options beyond this are unbounded in effect: no sequence is that long. Keeps i + off +- w small.
constexpr i64 kUnbounded = 1LL << 60;

// How the band lies: 0 bottom-right, 1 top-left, 2 explicit offset (values of tilewise::Alignment).
struct MaskRule {
  i64 left;
  i64 right;
  int alignment;
  i64 offset;
};

struct KeyRange {
  i64 begin;
  i64 end;  // exclusive; end <= begin means no key
  TW_FN bool empty() const { return end <= begin; }
  TW_FN i64 count() const { return end > begin ? end - begin : 0; }
};

enum class TileClass : int { empty = 0, partial = 1, full = 2 };

TW_FN i64 clamp_to(i64 value, i64 low, i64 high) {
  return value < low ? low : (value > high ? high : value);
}

// The band of one sequence: a MaskRule with this sequence's lengths filled in.
struct Band {
  i64 q_len;
  i64 kv_len;
  i64 off;    // shift of the diagonal: row i stands at key i + off
  i64 left;   // keys visible before the diagonal, kUnbounded = all
  i64 right;  // keys visible after the diagonal, kUnbounded = all

  // Visible keys of row i.
  TW_FN KeyRange keys_of_row(i64 i) const {
    KeyRange range;
    range.begin = left == kUnbounded ? 0 : clamp_to(i + off - left, 0, kv_len);
    range.end = right == kUnbounded ? kv_len : clamp_to(i + off + right + 1, 0, kv_len);
    return range;
  }
  TW_FN bool visible(i64 i, i64 j) const {
    const KeyRange range = keys_of_row(i);
    return j >= range.begin && j < range.end;
  }
  // Keys that at least one of the rows [row_begin, row_end) may see: what a query tile must visit.
  // An interval, because begin and end never decrease with the row.
  TW_FN KeyRange keys_of_rows(i64 row_begin, i64 row_end) const {
    KeyRange range;
    range.begin = keys_of_row(row_begin).begin;
    range.end = keys_of_row(row_end - 1).end;
    return range;
  }
  // Rows that see at least one of the keys [key_begin, key_end): what a key tile must visit.
  TW_FN KeyRange rows_of_keys(i64 key_begin, i64 key_end) const {
    KeyRange rows;
    rows.begin = right == kUnbounded ? 0 : clamp_to(key_begin - off - right, 0, q_len);
    rows.end = left == kUnbounded ? q_len : clamp_to(key_end - off + left, 0, q_len);
    return rows;
  }
  // full: every row sees every key of the tile; partial: some pairs only (or none, by shape).
  TW_FN TileClass classify(i64 row_begin, i64 row_end, i64 key_begin, i64 key_end) const {
    const KeyRange any = keys_of_rows(row_begin, row_end);
    if (any.begin >= key_end || any.end <= key_begin || any.empty()) return TileClass::empty;
    const i64 last_begin = keys_of_row(row_end - 1).begin;
    const i64 first_end = keys_of_row(row_begin).end;
    return (last_begin <= key_begin && first_end >= key_end) ? TileClass::full : TileClass::partial;
  }
  // |i + off - j|: the distance ALiBi multiplies.
  TW_FN i64 distance(i64 i, i64 j) const {
    const i64 d = i + off - j;
    return d < 0 ? -d : d;
  }
};

TW_FN Band make_band(const MaskRule& rule, i64 q_len, i64 kv_len) {
  Band band;
  band.q_len = q_len;
  band.kv_len = kv_len;
  band.off =
      rule.alignment == 0
          ? kv_len - q_len
          : (rule.alignment == 1 ? 0 : clamp_to(rule.offset, -(kUnbounded / 4), kUnbounded / 4));
  band.left = (rule.left < 0 || rule.left >= kUnbounded / 4) ? kUnbounded : rule.left;
  band.right = (rule.right < 0 || rule.right >= kUnbounded / 4) ? kUnbounded : rule.right;
  return band;
}

}  // namespace semantics
}  // namespace tilewise
