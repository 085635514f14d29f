// One forward problem on the GPU against float64 on the CPU. Inputs and outputs lie in buffers that
// are poisoned with NaN before, between and after the owned elements; every owned output must be
// written, nothing else may change. Tolerance: contracts, "Accuracy", c1 = 1, c2 = 4.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch.h"

namespace tilewise::gpu::testing {

enum class Layout {
  kBshd,
  kBhsd,
  kStrided,
  kBroadcast,
  kOdd,  // odd strides, data not aligned: forward_mma only
};
enum class Data {
  kNormal,
  kLarge,         // q and k times 6: scores far apart, maxima move
  kLateOutlier,   // keys near the start are far larger than those met first
  kVeryNegative,  // every score near -6e5
  kZeros,
  kNanKey,      // one key row is NaN
  kNanValue,    // one value row is NaN
  kInfQuery,    // one query row holds +inf
  kIndexCoded,  // v[j][d] = j mod 32 + d / 256, k = 0: the mean of visible rows
};

struct ForwardCase {
  std::string name;
  int batch = 1;
  int q_heads = 2;
  int kv_heads = 0;  // 0: q_heads
  int q = 0;
  int kv = -1;  // -1: q
  int d = 128;
  int dv = 0;  // 0: d
  int64_t left = -1;
  int64_t right = -1;
  int alignment = 0;  // 0 bottom-right, 1 top-left, 2 offset
  int64_t offset = 0;
  Element element = Element::kBf16;
  Layout layout = Layout::kBshd;
  Data data = Data::kNormal;
  std::vector<int> q_lens = {};  // packed
  std::vector<int> kv_lens = {};
  double softcap = 0;
  double dropout = 0;
  bool alibi = false;
  bool sink = false;
  bool lse = true;
  // "consumers=3,block_n=64": fields to change after planning; "family=1": planned as forward_mma.
  std::string spec = {};
  int repeats = 1;  // runs whose outputs must be equal bit for bit
};

struct Outcome {
  bool passed = false;
  double worst = 0;      // largest error / allowed error of out
  double worst_lse = 0;  // the same for lse
  std::string message;
};

std::string describe(const ForwardCase& c);
// The plan of a case, without data: what has to be compiled.
ForwardPlan plan_case(const ForwardCase& c);
Outcome run_case(const ForwardCase& c, uint64_t seed);

// Sets fields of a spec by name; returns the value of "section" or -1.
int change_spec(KernelSpec& spec, const std::string& changes);

}  // namespace tilewise::gpu::testing
