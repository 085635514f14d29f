// Scores of one panel [keys, width]: from products to scores, and the visibility of their lanes.
//
//   score_log2 = log2(e) * (softcap(scale q.k) - slope |i + off - j|),  -inf where invisible
//
// Queries are packed with the factor that makes the products log2-scaled (or tanh's argument), so
// the common case has nothing to do here.
#pragma once

#include "cpu/call.h"
#include "cpu/exp2.h"
#include "cpu/simd.h"

namespace tilewise::cpu {

// Rows of a panel.
template <class S>
constexpr int kWidth = S::kScoreVectors* S::kLanes;

// What a packed query is multiplied by.
TW_INLINE float query_factor(const Settings& settings) {
  return static_cast<float>(settings.softcap > 0 ? settings.scale / settings.softcap
                                                 : settings.scale * kLog2e);
}

// Keys [begin, end) of a panel's tile in the sequence, and how its lanes see them.
struct PanelKeys {
  int64_t begin;
  int64_t end;
  bool full;  // every lane sees every key
};

// Pairs of keys start at even ones.
template <class S>
TW_INLINE int64_t first_of_pair(int64_t key) {
  return kPairs<S> ? key - key % 2 : key;
}

// The part of the keys [begin, end) that some lane sees, from the first of a pair on.
template <class S>
TW_INLINE PanelKeys keys_of_panel(const Tile& tile, int panel, int64_t begin, int64_t end) {
  const int64_t* const lane_begin = tile.key_begin + panel * kWidth<S>;
  const int64_t* const lane_end = tile.key_end + panel * kWidth<S>;
  const int last = kWidth<S> - 1;
  PanelKeys keys;
  keys.begin = lane_begin[0] > begin ? first_of_pair<S>(lane_begin[0]) : begin;
  keys.end = lane_end[last] < end ? lane_end[last] : end;
  keys.full = lane_begin[last] <= keys.begin && lane_end[0] >= keys.end;
  return keys;
}

// Per-lane numbers of a panel relative to its first key, small enough to be exact floats.
template <class S>
struct LaneRules {
  float first[kWidth<S>];     // first visible key
  float past[kWidth<S>];      // past the last visible key
  float diagonal[kWidth<S>];  // key at which the row stands
  float slope[kWidth<S>];     // -ALiBi's, log2-scaled
};

TW_INLINE GroupLane lane_of(const Tile& tile, int lane) {
  if (tile.lanes != nullptr) return tile.lanes[lane];
  return {lane, 0, tile.slope, tile.sink};
}

template <class S>
TW_INLINE float relative_key(int64_t key, const PanelKeys& keys) {
  if (key <= keys.begin) return 0;
  return static_cast<float>(key >= keys.end ? keys.end - keys.begin : key - keys.begin);
}

template <class S>
void fill_lane_rules(const Tile& tile, int panel, const PanelKeys& keys, LaneRules<S>& rules) {
  for (int lane = 0; lane < kWidth<S>; ++lane) {
    const int row = panel * kWidth<S> + lane;
    const GroupLane own = lane_of(tile, row);
    rules.first[lane] = relative_key<S>(tile.key_begin[row], keys);
    rules.past[lane] = relative_key<S>(tile.key_end[row], keys);
    rules.diagonal[lane] = static_cast<float>(tile.diagonal + static_cast<double>(own.row) -
                                              static_cast<double>(keys.begin));
    rules.slope[lane] = static_cast<float>(-own.slope * kLog2e);
  }
}

// lane sees key (relative to the panel's keys) ? value : otherwise
template <class S>
TW_INLINE typename S::Vector if_visible(const LaneRules<S>& rules, int vector,
                                        typename S::Vector key, typename S::Vector value,
                                        typename S::Vector otherwise) {
  const int lane = vector * S::kLanes;
  const auto from_first = S::select(S::less(key, S::load(rules.first + lane)), otherwise, value);
  return S::select(S::less(key, S::load(rules.past + lane)), from_first, otherwise);
}

// log2(e) * softcap(x), x the product of a query packed by query_factor(); tanh for its slope.
template <class S>
struct CappedScore {
  typename S::Vector score_log2;
  typename S::Vector tanh;
};

template <class S>
TW_INLINE CappedScore<S> softcap(const Settings& settings, typename S::Vector x) {
  const auto tanh = tanh_of<S>(x);
  return {S::mul(tanh, S::set1(static_cast<float>(settings.softcap * kLog2e))), tanh};
}

// -slope |i + off - j|, log2-scaled.
template <class S>
TW_INLINE typename S::Vector add_alibi(const LaneRules<S>& rules, int vector,
                                       typename S::Vector key, typename S::Vector score_log2) {
  const auto distance = S::abs(S::sub(S::load(rules.diagonal + vector * S::kLanes), key));
  return S::fma(distance, S::load(rules.slope + vector * S::kLanes), score_log2);
}

}  // namespace tilewise::cpu
