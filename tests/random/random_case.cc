// Drawing a Case: sizes first, then options, then whatever would cost too much is cut down.
#include "tests/random/random_case.h"

#include <algorithm>

#include "case/case_data.h"

namespace tilewise::test {

namespace {

// Multiplications of one pass of the reference; keeps a Case to some milliseconds.
constexpr int64_t kMostWork = 2000000;
constexpr int64_t kMostKernelWork = 16000000;  // a GPU's tiles are larger

class Draw {
 public:
  Draw(uint64_t seed, uint64_t number) : state_(mix_bits(mix_bits(seed) + number)) {}
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(mix_bits(state_++) % static_cast<uint64_t>(bound));
  }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int64_t percent) { return below(100) < percent; }
  template <class Item, size_t count>
  Item pick(const Item (&items)[count]) {
    return items[below(count)];
  }

 private:
  uint64_t state_;
};

// Lengths near the sizes that kernels cut work into, now and then none at all.
int64_t draw_length(Draw& draw) {
  constexpr int64_t kEdges[] = {8, 16, 32, 48, 64, 96, 128, 192, 256};
  if (draw.chance(3)) return 0;
  if (draw.chance(30)) return draw.between(1, 20);
  if (draw.chance(20)) return draw.between(1, 300);
  return std::max<int64_t>(1, draw.pick(kEdges) + draw.between(-2, 2));
}

int64_t draw_dim(Draw& draw) {
  constexpr int64_t kUsual[] = {16, 32, 64, 80, 96, 128, 192, 256};
  if (draw.chance(40)) return draw.pick(kUsual);
  return draw.chance(60) ? draw.between(1, 40) : draw.between(1, 256);
}

void draw_heads(Draw& draw, Case& c) {
  constexpr int64_t kGroups[] = {1, 1, 1, 2, 2, 3, 4, 7, 8};
  c.hkv = draw.chance(50) ? 1 : draw.between(1, 4);
  c.hq = c.hkv * draw.pick(kGroups);
  if (draw.chance(1)) c.hq = 71 * c.hkv;
}

Mask draw_mask(Draw& draw, const Case& c) {
  const int64_t longest = std::max(c.q, c.kv);
  const auto width = [&] {
    if (draw.chance(15)) return int64_t{-1};
    if (draw.chance(5)) return draw.chance(50) ? int64_t{INT32_MAX} : INT64_MAX;
    return draw.chance(50) ? draw.below(5) : draw.below(longest + 3);
  };
  const auto offset = [&] { return draw.between(-longest - 2, longest + 2); };
  switch (draw.below(9)) {
    case 0:
    case 1:
      return Mask::none();
    case 2:
    case 3:
      return Mask::causal();
    case 4:
      return Mask::causal(Alignment::top_left);
    case 5:
      return Mask::causal_at(offset());
    case 6:
      return Mask::window(width(), draw.chance(50) ? 0 : width());
    case 7:
      return {width(), width(), Alignment::top_left, 0};
    default:
      return {width(), width(), Alignment::at_offset, offset()};
  }
}

void draw_lengths(Draw& draw, Case& c) {
  if (draw.chance(75)) {
    c.b = draw.chance(60) ? 1 : draw.between(1, 4);
    if (draw.chance(2)) c.b = 0;
    c.q = draw_length(draw);
    c.kv = draw.chance(50) ? c.q : draw_length(draw);
    if (draw.chance(8)) c.q = 1;  // decode
    return;
  }
  c.b = draw.between(1, 5);
  for (int64_t i = 0; i < c.b; ++i) {
    c.qlens.push_back(draw.chance(10) ? 0 : draw_length(draw));
    c.kvlens.push_back(draw.chance(10) ? 0 : draw_length(draw));
  }
  if (draw.chance(50)) c.kvlens = c.qlens;
}

void set_longest(Case& c) {
  if (!c.packed()) return;
  c.q = *std::max_element(c.qlens.begin(), c.qlens.end());
  c.kv = *std::max_element(c.kvlens.begin(), c.kvlens.end());
}

void cut_down(Case& c) {
  set_longest(c);
  while (c.b * c.hq * c.q * c.kv * (c.d + c.dv) > kMostWork) {
    if (c.hq > 8) {
      c.hq = c.hkv * std::max<int64_t>(1, c.hq / c.hkv / 2);
      if (c.hq > 8) c.hq = c.hkv = 2;
    } else if (c.b > 2 && !c.packed()) {
      c.b = 2;
    } else if (c.d + c.dv > 96) {
      c.d = (c.d + 1) / 2;
      c.dv = (c.dv + 1) / 2;
    } else if (c.packed() && c.b > 2) {
      c.qlens.pop_back();
      c.kvlens.pop_back();
      --c.b;
    } else if (c.hkv > 1) {
      c.hq /= c.hkv;
      c.hkv = 1;
    } else if (c.d + c.dv > 8) {
      c.d = (c.d + 1) / 2;
      c.dv = (c.dv + 1) / 2;
    } else {
      c.q = (c.q + 1) / 2;
      for (int64_t& len : c.qlens) len /= 2;
    }
    set_longest(c);
  }
}

void draw_options(Draw& draw, Case& c) {
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
  c.dtype = draw.pick(kTypes);
  c.mask = draw_mask(draw, c);
  if (draw.chance(15)) c.scale = draw.chance(50) ? 1.0 : 0.03;
  if (draw.chance(20)) c.softcap = draw.chance(50) ? 30.0 : 1.5;
  if (draw.chance(20)) {
    c.alibi = draw.chance(50) ? CaseSlopes::per_head : CaseSlopes::per_batch_head;
  }
  c.sink = draw.chance(20);
  if (draw.chance(20)) {
    c.dropout = draw.chance(50) ? 0.1 : 0.6;
    c.dropout_offset = static_cast<uint32_t>(draw.below(3));
  }
  const int64_t data = draw.below(100);
  c.data = data < 62   ? CaseData::normal
           : data < 70 ? CaseData::large
           : data < 84 ? CaseData::outlier
           : data < 92 ? CaseData::equal
                       : CaseData::zeros;
  const bool can_pack = c.qlens == c.kvlens && c.q == c.kv;
  const int64_t layout = draw.below(100);
  c.layout = layout < 30               ? CaseLayout::bshd
             : layout < 50             ? CaseLayout::bhsd
             : layout < 65 && can_pack ? CaseLayout::packed_qkv
                                       : CaseLayout::strided;
  if (c.layout == CaseLayout::packed_qkv) c.dv = c.d;
}

void draw_direction(Draw& draw, Case& c) {
  if (draw.chance(50)) {
    c.lse = draw.chance(70);
    return;
  }
  c.dir = Direction::backward;
  c.deterministic = draw.chance(40);
  c.dlse = draw.chance(25);
  if (draw.chance(75)) return;
  for (const char* gradient : {"dq", "dk", "dv"}) {
    if (draw.chance(50)) c.want.emplace_back(gradient);
  }
  if (c.sink && draw.chance(50)) c.want.emplace_back("dsink");
}

}  // namespace

Case like_kernel(Case c, const Case& kernel) {
  c.dtype = kernel.dtype;
  c.d = kernel.d;
  c.dv = kernel.dv;
  c.softcap = kernel.softcap;
  c.alibi = kernel.alibi;
  c.sink = kernel.sink;
  c.dropout = kernel.dropout;
  c.lse = kernel.lse;
  if (kernel.mask.left == -1) c.mask.left = -1;
  if (kernel.mask.right == -1) c.mask.right = -1;
  if (c.d != c.dv && c.layout == CaseLayout::packed_qkv) c.layout = CaseLayout::strided;
  while (c.b * c.hq * c.q * c.kv * (c.d + c.dv) > kMostKernelWork) {
    if (c.hq > c.hkv) {
      c.hq = c.hkv;
    } else if (c.hkv > 1) {
      c.hq = c.hkv = 1;
    } else {
      break;
    }
  }
  return c;
}

Case random_case(uint64_t seed, uint64_t number) {
  Draw draw(seed, number);
  Case c;
  c.seed = static_cast<uint64_t>(draw.below(1000000));
  draw_lengths(draw, c);
  draw_heads(draw, c);
  c.d = draw_dim(draw);
  c.dv = draw.chance(70) ? c.d : draw_dim(draw);
  cut_down(c);
  draw_options(draw, c);
  draw_direction(draw, c);
  return c;
}

}  // namespace tilewise::test
