// What there is to test on this machine: each backend that takes CPU tensors, and the cpu backend
// once for each instruction set, chosen by TILEWISE_ISA before a plan is made.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "case/verify.h"
#include "cpu/isa.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::test {

struct Target {
  std::string backend;
  std::string isa;  // "" = the best there is
  // The only refusal that is no failure: "standard" is there for comparison, not for everything.
  bool may_refuse(const Verdict& verdict) const {
    return backend == "standard" && !verdict.supported;
  }
  std::string name() const { return isa.empty() ? backend : backend + "/" + isa; }
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

inline const std::vector<Target>& targets() {
  static const std::vector<Target> list = [] {
    std::vector<Target> all;
    for (const std::string& isa : cpu::available_isas()) all.push_back({"cpu", isa});
    all.push_back({"reference", ""});
    return all;
  }();
  return list;
}

// With "standard", which may refuse what it is not made for.
inline const std::vector<Target>& judged_targets() {
  static const std::vector<Target> list = [] {
    std::vector<Target> all = targets();
    all.push_back({"standard", ""});
    return all;
  }();
  return list;
}

// The reference as a target only shows that its backend writes what its functions return: not
// worth the time where the problem is long.
inline bool worth_running(const Target& target, const Case& c) {
  constexpr double kLong = 1e6;
  return target.backend != "reference" ||
         static_cast<double>(c.b * c.hq * c.q) * static_cast<double>(c.kv * (c.d + c.dv)) < kLong;
}

}  // namespace tilewise::test
