// Units of work and the order they are handed out. A unit is one head of one sequence and up to
// `consumers` consecutive 64-row tiles, counted from the last row of the matrix, so that the
// incomplete unit is the cheapest one. Heads are walked in sections whose K and V fit the L2; in a
// section all heads' longest units come first. The K warp decodes a unit once and passes it to
// every other role through a ring of slots in shared memory.
#pragma once

#include "args.h"
#include "kernels/pipeline.cuh"
#include "kernels/tile.cuh"

namespace tilewise::gpu {

// What the loading warps need to know of a unit.
struct alignas(16) Unit {
  int batch;  // -1: no work left
  int head;
  int top_tile;  // tiles top_tile, top_tile - 1, ... one per consumer warpgroup
  int q_start;   // packed: first row of the sequence in q
  int q_len;
  int kv_start;
  int kv_len;
  int begin;  // blocks that stream by: end - 1 down to begin
  int end;
};

struct SlotRing {
  Unit unit[kSlots];
  Item item[kSlots][kMaxConsumers];  // the share of each consumer
  Barrier full[kSlots];              // K warp arrives once: the slot holds the next unit
  Barrier empty[kSlots];             // every reading warp arrives once: it has read the slot
};

static_assert(sizeof(Unit) + kMaxConsumers * sizeof(Item) == kSlotBytes);

// Walks from unit indices, which only grow, to units. All lanes of the warp call it together.
template <KernelSpec kSpec>
struct UnitDecoder {
  int base_batch = 0;  // packed: batches before this one are used up
  int base_unit = 0;   // packed: units of those batches

  TW_DEVICE static void place(Unit& unit, int index, int groups, int heads, int section_heads,
                              int* head) {
    const int section_units = groups * section_heads;
    const int section = index / section_units;
    const int inside = index - section * section_units;
    const int left = heads - section * section_heads;
    const int width = left < section_heads ? left : section_heads;
    const int group = inside / width;
    *head = section * section_heads + (inside - group * width);
    unit.top_tile = ceil_div(unit.q_len, kTileRows) - 1 - group * kSpec.consumers;
  }

  TW_DEVICE Unit plain(const ForwardArgs& args, int index) const {
    Unit unit{};
    unit.batch = -1;
    if (index >= args.unit_count) return unit;
    unit.q_len = args.q_len;
    unit.kv_len = args.kv_len;
    int head;
    place(unit, index, args.groups, args.batch * args.q_heads, args.section_heads, &head);
    unit.batch = head / args.q_heads;
    unit.head = head - unit.batch * args.q_heads;
    return unit;
  }

  // A warp-wide prefix sum over 32 sequences at a time finds the one that holds the unit.
  TW_DEVICE Unit packed(const ForwardArgs& args, int index) {
    constexpr int kUnitRows = kTileRows * kSpec.consumers;
    Unit unit{};
    unit.batch = -1;
    for (; base_batch < args.batch; base_batch += 32) {
      const int batch = base_batch + lane_id();
      int units = 0;
      if (batch < args.batch) {
        const int rows = args.q_starts[batch + 1] - args.q_starts[batch];
        units = ceil_div(rows, kUnitRows) * args.q_heads;
      }
      int sum = units;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(kAllLanes, sum, step);
        if (lane_id() >= step) sum += below;
      }
      const Uint32 beyond = __ballot_sync(kAllLanes, base_unit + sum > index);
      if (beyond != 0) {
        const int found = __ffs(static_cast<int>(beyond)) - 1;
        const int before = __shfl_sync(kAllLanes, sum - units, found);
        fill(unit, args, base_batch + found, index - base_unit - before);
        return unit;
      }
      base_unit += __shfl_sync(kAllLanes, sum, 31);
    }
    return unit;
  }

  TW_DEVICE static void fill(Unit& unit, const ForwardArgs& args, int batch, int index) {
    unit.batch = batch;
    unit.q_start = args.q_starts[batch];
    unit.q_len = args.q_starts[batch + 1] - unit.q_start;
    unit.kv_start = args.kv_starts[batch];
    unit.kv_len = args.kv_starts[batch + 1] - unit.kv_start;
    const int groups = ceil_div(unit.q_len, kTileRows * kSpec.consumers);
    place(unit, index, groups, args.q_heads, min_of(args.section_heads, args.q_heads), &unit.head);
  }

  TW_DEVICE Unit decode(const ForwardArgs& args, int index) {
    if constexpr (kSpec.varlen) return packed(args, index);
    return plain(args, index);
  }

  // Units of the whole problem; packed: known once decode() has found no more.
  TW_DEVICE int units(const ForwardArgs& args) const {
    return kSpec.varlen ? base_unit : args.unit_count;
  }
};

// Hands this CTA unit indices, called by all lanes of the K warp; they all get the same.
template <KernelSpec kSpec>
struct UnitIndex {
  bool opened = false;  // the counter is known to carry this launch's number

  TW_DEVICE int after(const ForwardArgs& args, int index) {
    if constexpr (kSpec.schedule == Schedule::kStatic) return index + gridDim.x;
    int next = 0;
    if (lane_id() == 0) {
      if (!opened) open(args);
      next = static_cast<int>(gridDim.x + atomicAdd(&args.counter->next, 1u));
    }
    opened = true;
    return __shfl_sync(kAllLanes, next, 0);
  }

  // Where two CTAs find a foreign number, one writes ours and the other sees its exchange fail:
  // either way the counter then is ours, and starts at 0.
  TW_DEVICE static void open(const ForwardArgs& args) {
    const Uint64 low = static_cast<Uint64>(args.launch[0]) << 32;
    const Uint64 high = static_cast<Uint64>(args.launch[2]) << 32 | args.launch[1];
    const Word128 seen = load_relaxed(args.counter);
    const bool ours = seen.low >> 32 == args.launch[0] && seen.high == high;
    if (!ours) exchange_if_equal(args.counter, seen, Word128{low, high});
  }

  // `index` is the first one past the last of all `units`. CTAs ask `units` times in all, the last
  // time each in vain; whoever made the last call of all closes the counter, so that a replayed
  // graph, whose launches keep their numbers, opens it again.
  TW_DEVICE void close(const ForwardArgs& args, int index, int units) const {
    if constexpr (kSpec.schedule == Schedule::kStatic) return;
    if (opened && lane_id() == 0 && index - static_cast<int>(gridDim.x) == units - 1) {
      *args.counter = UnitCounter{};
    }
  }
};

// The tile of consumer `wg`; odd units deal their tiles in reverse, so that no warpgroup always
// owns the longest one. Below 0: no tile, the warpgroup repeats tile 0 and stores nothing.
template <KernelSpec kSpec>
TW_DEVICE int tile_of_consumer(const Unit& unit, int wg, bool flipped) {
  return unit.top_tile - (flipped ? kSpec.consumers - 1 - wg : wg);
}

// Completes the unit with the blocks that any of its tiles needs, and passes it on: lane w works
// out the item of consumer w.
template <KernelSpec kSpec>
TW_DEVICE void publish_unit(const ForwardArgs& args, SlotRing& ring, RingIndex<kSlots>& at,
                            Unit& unit, bool flipped) {
  const int wg = min_of(lane_id(), kSpec.consumers - 1);
  const int tile = tile_of_consumer<kSpec>(unit, wg, flipped);
  Item item = item_of_tile<kSpec>(args, unit.q_len, unit.kv_len, tile);
  unit.begin = __reduce_min_sync(kAllLanes, item.begin);
  unit.end = __reduce_max_sync(kAllLanes, item.end);
  item.skip_right = unit.end - item.end;
  item.skip_left = item.begin - unit.begin;
  item.batch = unit.batch;
  item.head = unit.head;
  item.q_start = unit.q_start;
  item.q_len = unit.q_len;
  item.kv_len = unit.kv_len;
  wait(ring.empty[at.stage], at.phase ^ 1);
  if (lane_id() < kSpec.consumers) ring.item[at.stage][lane_id()] = item;
  if (lane_id() == 0) ring.unit[at.stage] = unit;
  arrive_warp(ring.full[at.stage]);
  at.advance();
}

// Called by all lanes of a reading warp.
TW_DEVICE Unit read_unit(SlotRing& ring, RingIndex<kSlots>& at) {
  wait(ring.full[at.stage], at.phase);
  const Unit unit = ring.unit[at.stage];
  arrive_warp(ring.empty[at.stage]);
  at.advance();
  return unit;
}

// The same for a warp of consumer `wg`. What the launch fixes is taken from the arguments.
template <KernelSpec kSpec>
TW_DEVICE Item read_item(const ForwardArgs& args, SlotRing& ring, RingIndex<kSlots>& at, int wg) {
  wait(ring.full[at.stage], at.phase);
  Item item = ring.item[at.stage][wg];
  arrive_warp(ring.empty[at.stage]);
  at.advance();
  if constexpr (!kSpec.varlen) {
    item.q_start = 0;
    item.q_len = args.q_len;
    item.kv_len = args.kv_len;
  }
  if constexpr (!kSpec.bound_left) item.begin = item.free_begin = item.skip_left = 0;
  return item;
}

}  // namespace tilewise::gpu
