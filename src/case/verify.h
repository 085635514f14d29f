// verify_case: runs one Case on one backend and compares it with the float64 reference.
//
// The call goes through the public API (make_plan, Plan::run) with poisoned outputs and a poisoned
// workspace of exactly the size asked for. A backward Case runs forward first and hands backward
// its out and lse, as a user does. Every element must lie within the bound of case/tolerance.h;
// NaN and infinities must stand exactly where the reference has them; no byte that the call does
// not own may change; a second run must give the same bits (backward: with deterministic=1).
// A backend that takes device memory runs on a mirror of all that memory, canaries and workspace
// included (case/device_mirror.h). Long problems are checked on a sample of rows and keys that
// holds the first, the last and the neighbours of tile edges. docs/numerics.md, docs/testing.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "case/case.h"
#include "case/case_tensors.h"

namespace tilewise {

struct TensorVerdict {
  std::string name;        // "out", "lse", "d_q", ...
  double worst_ratio = 0;  // largest error / bound; 1 is the limit
  std::string where;       // index of the worst element, "[b=0, row=5, head=1, 7]"
  double got = 0;          // there
  double expected = 0;
  int64_t checked = 0;  // elements compared
};

struct Verdict {
  bool passed = false;
  bool supported = true;  // false: the backend refused; failures holds its reasons
  std::vector<TensorVerdict> tensors;
  std::vector<std::string> failures;  // one text each; empty when passed
  std::string rerun;                  // tilewise check "CASE" --backend cpu
  double worst_ratio() const;
};

// Throws Error only for a Case that makes no sense; whatever the backend throws is a failure.
Verdict verify_case(const Case& c, const std::string& backend);

// The same on tensors that the caller may have changed by hand (then seal_inputs()), for several
// backends or instruction sets in turn: the reference is computed once.
class CaseVerifier {
 public:
  explicit CaseVerifier(CaseTensors& tensors);
  ~CaseVerifier();
  CaseVerifier(const CaseVerifier&) = delete;
  CaseVerifier& operator=(const CaseVerifier&) = delete;
  // `farthest` forward: a backward Case is only run forward.
  Verdict verify(const std::string& backend, Direction farthest = Direction::backward);

 private:
  struct Exact;
  CaseTensors& tensors_;
  std::unique_ptr<Exact> exact_;
};

// One forward or backward call through make_plan and Plan::run with a poisoned workspace of exact
// size; returns a text when the workspace was overrun, else "". Throws what the call throws.
std::string run_poisoned(Direction direction, const CaseTensors& tensors,
                         const std::string& backend);

}  // namespace tilewise
