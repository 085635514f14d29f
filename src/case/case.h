// Case: one line of text that names a problem, for tests, `run`, `check`, `bench` and repro lines.
//
//   b=2 hq=8 hkv=2 q=1024 kv=1024 d=128 mask=causal dtype=bf16 dir=bwd
//
// key=value words in any order, defaults for all but sizes; print() gives the canonical order with
// defaults left out, and parse(print(c)) == c. The keys are listed in docs/case.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/tilewise.hpp"

namespace tilewise {

enum class CaseLayout { bshd, bhsd, packed_qkv, strided };
enum class CaseData { normal, large, outlier, equal, zeros, file };
enum class CaseSlopes { none = 0, per_head = 1, per_batch_head = 2 };  // none, [h], [b, h]

struct Case {
  int64_t b = 1;
  int64_t hq = 1;
  int64_t hkv = 1;  // defaults to hq
  int64_t q = 0;    // packed: the longest of qlens
  int64_t kv = 0;   // defaults to q; packed: the longest of kvlens
  int64_t d = 0;
  int64_t dv = 0;  // defaults to d
  Mask mask;
  DType dtype = DType::f32;
  Direction dir = Direction::forward;
  double scale = 0;  // 0: the default, 1 / sqrt(d)
  double softcap = 0;
  CaseSlopes alibi = CaseSlopes::none;
  bool sink = false;
  double dropout = 0;
  uint32_t dropout_offset = 0;
  uint64_t seed = 0;  // of the data, the gaps of layout=strided and dropout
  CaseLayout layout = CaseLayout::bshd;
  std::vector<int64_t> qlens;   // not empty: a packed batch; b, q and kv follow
  std::vector<int64_t> kvlens;  // defaults to qlens
  CaseData data = CaseData::normal;
  std::string file;  // data=file:NAME
  bool deterministic = false;
  bool lse = true;                // forward: ask for lse (backward always has it)
  bool dlse = false;              // backward: pass a gradient of lse
  std::vector<std::string> want;  // backward: subset of dq, dk, dv, dsink; empty = all that exist

  bool packed() const { return !qlens.empty(); }
  bool operator==(const Case&) const = default;
};

// Throws Error(invalid_argument) that quotes the word; unknown keys get "did you mean". Keys that
// are reserved for later (docs/case.md) are Error(unsupported).
Case parse_case(std::string_view text);
std::string print_case(const Case& c);

// The options a Case asks for (backend left empty).
Options options_of(const Case& c);

}  // namespace tilewise
