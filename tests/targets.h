// What there is to test on this machine: the cpu backend once for each instruction set, chosen by
// TILEWISE_ISA before a plan is made; the reference; and the gpu backend where there is a GPU.
// TILEWISE_TEST_BACKEND names the only one to test: ./dev gpu-test sets it to gpu.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "case/verify.h"
#include "cpu/isa.h"
#include "device.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::test {

struct Target {
  std::string backend;
  std::string isa = {};  // "" = the best there is

  bool on_device() const { return backend == "gpu"; }
  // The GPU has no backward kernel yet: there a backward Case is run forward only.
  Direction farthest() const { return on_device() ? Direction::forward : Direction::backward; }
  bool can_backward() const { return farthest() == Direction::backward; }
  // The only refusal that is no failure: "standard" is there for comparison, not for everything.
  bool may_refuse(const Verdict& verdict) const {
    return backend == "standard" && !verdict.supported;
  }
  std::string name() const { return isa.empty() ? backend : backend + "/" + isa; }
  // The part of a Case that the target can run.
  Case reachable(Case c) const {
    if (can_backward()) return c;
    c.dir = Direction::forward;
    c.dlse = c.deterministic = false;
    c.want.clear();
    return c;
  }
  // The nearest Case that the fastest kernels of the target take: on a GPU bf16 for fp32, and rows
  // of whole 16 bytes.
  Case fitted(Case c) const {
    if (!on_device()) return c;
    if (c.dtype == DType::f32) c.dtype = DType::bf16;
    c.d = (c.d + 7) / 8 * 8;
    c.dv = (c.dv + 7) / 8 * 8;
    return reachable(c);
  }
};

// TILEWISE_ISA for as long as it lives.
class ChosenIsa {
 public:
  explicit ChosenIsa(const Target& target) {
    const char* before = std::getenv("TILEWISE_ISA");
    had_ = before != nullptr;
    if (had_) before_ = before;
    if (!target.isa.empty()) setenv("TILEWISE_ISA", target.isa.c_str(), 1);
  }
  ~ChosenIsa() {
    if (had_) {
      setenv("TILEWISE_ISA", before_.c_str(), 1);
    } else {
      unsetenv("TILEWISE_ISA");
    }
  }
  ChosenIsa(const ChosenIsa&) = delete;
  ChosenIsa& operator=(const ChosenIsa&) = delete;

 private:
  bool had_ = false;
  std::string before_;
};

inline std::string named_backend() {
  const char* wanted = std::getenv("TILEWISE_TEST_BACKEND");
  return wanted == nullptr ? "" : wanted;
}

inline std::vector<Target> only_wanted(std::vector<Target> all) {
  const std::string wanted = named_backend();
  if (wanted.empty()) return all;
  std::erase_if(all, [&](const Target& target) { return target.backend != wanted; });
  return all;
}

inline const std::vector<Target>& targets() {
  static const std::vector<Target> list = [] {
    std::vector<Target> all;
    for (const std::string& isa : cpu::available_isas()) all.push_back({"cpu", isa});
    all.push_back({"reference"});
    if (device_count() > 0) all.push_back({"gpu"});
    return only_wanted(all);
  }();
  return list;
}

// With "standard", which may refuse what it is not made for.
inline const std::vector<Target>& judged_targets() {
  static const std::vector<Target> list = [] {
    std::vector<Target> all = targets();
    for (const Target& target : only_wanted({{"standard"}})) all.push_back(target);
    return all;
  }();
  return list;
}

// Why a test that found no target has tested nothing; "" = it may go on.
inline std::string why_no_target(const std::vector<Target>& list) {
  if (!list.empty()) return "";
  return "TILEWISE_TEST_BACKEND=" + named_backend() +
         (judged_targets().empty() ? ": no such backend on this machine"
                                   : ": it is only judged against the reference");
}

// A Case, and what else to run so that each target gets one for its fastest kernels.
inline std::vector<Case> variants_of(const Case& c) {
  std::vector<Case> variants = {c};
  for (const Target& target : targets()) {
    const Case fitted = target.fitted(c);
    if (std::find(variants.begin(), variants.end(), fitted) == variants.end()) {
      variants.push_back(fitted);
    }
  }
  return variants;
}

// The reference as a target only shows that its backend writes what its functions return: not
// worth the time where the problem is long.
inline bool worth_running(const Target& target, const Case& c) {
  constexpr double kLong = 1e6;
  return target.backend != "reference" ||
         static_cast<double>(c.b * c.hq * c.q) * static_cast<double>(c.kv * (c.d + c.dv)) < kLong;
}

}  // namespace tilewise::test
