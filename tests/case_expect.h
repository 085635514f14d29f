// What most tests are made of: expect_matches_reference("q=64 d=64 mask=causal") runs the Case on
// every backend and instruction set of this machine and compares it with float64. A failure prints
// the command that reruns it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "case/case.h"
#include "case/case_tensors.h"
#include "case/device_mirror.h"
#include "case/verify.h"
#include "reference/element.h"
#include "tests/targets.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::test {

// A call with any tensors: a plan of its own (the library's plan cache does not know about
// TILEWISE_ISA), a poisoned workspace, no judging. On a GPU a copy of the tensors is used, and
// backward is left out.
inline void run_call(Direction direction, const Tensors& tensors, Options options,
                     const Target& target) {
  if (direction > target.farthest()) return;
  const ChosenIsa chosen(target);
  options.backend = target.backend;
  const Plan plan =
      make_plan(direction, target.on_device() ? as_device_tensors(tensors) : tensors, options);
  const PoisonedWorkspace workspace(plan.workspace_bytes());
  if (target.on_device()) {
    std::vector<std::span<std::byte>> spans = spans_of(tensors);
    spans.push_back(workspace.memory().accessible());
    DeviceMirror mirror(std::move(spans));
    mirror.upload();
    plan.run(mirror.on_device(tensors), mirror.address_of(workspace.data()), workspace.bytes());
    EXPECT_EQ(mirror.download(), "");
  } else {
    plan.run(tensors, workspace.data(), workspace.bytes());
  }
  EXPECT_FALSE(workspace.overrun());
}

// Judges tensors, which a test may have set by hand, on each target.
inline void expect_tensors_match(CaseTensors& tensors) {
  ASSERT_EQ(why_no_target(judged_targets()), "");
  CaseVerifier verifier(tensors);
  for (const Target& target : judged_targets()) {
    if (!worth_running(target, tensors.text())) continue;
    const ChosenIsa chosen(target);
    const Verdict verdict = verifier.verify(target.backend, target.farthest());
    if (verdict.passed || target.may_refuse(verdict)) continue;
    std::string text;
    for (const std::string& failure : verdict.failures) text += "\n  " + failure;
    ADD_FAILURE() << verdict.rerun << text;
  }
}

inline void expect_matches_reference(std::string_view text) {
  for (const Case& c : variants_of(parse_case(text))) {
    CaseTensors tensors(c);
    expect_tensors_match(tensors);
  }
}

inline void expect_all_match(std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts) expect_matches_reference(text);
}

// Each Case in all three dtypes, forward and backward.
inline void expect_all_match_everywhere(std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts) {
    for (const char* dtype : {" dtype=fp32", " dtype=bf16", " dtype=fp16"}) {
      expect_matches_reference(std::string(text) + dtype);
      expect_matches_reference(std::string(text) + dtype + " dir=bwd");
    }
  }
}

// --- tensors set and read by hand, for literal cases ---

// In logical order: sequence, row, head, column.
inline void set_values(CaseTensors& tensors, Arg arg,
                       const std::function<double(ElementIndex)>& f) {
  const bool backward = tensors.text().dir == Direction::backward;
  const Tensor& tensor = tensor_of(backward ? tensors.backward() : tensors.forward(), arg);
  if (!tensor.given()) return;
  for_each_element(tensors.text(), arg, tensor, [&](int64_t offset, const ElementIndex& index) {
    reference::write_element(tensor.data, tensor.dtype, offset, f(index));
  });
  tensors.seal_inputs();
}

inline void set_values(CaseTensors& tensors, Arg arg, const std::vector<double>& values) {
  size_t next = 0;
  set_values(tensors, arg, [&](const ElementIndex&) { return values.at(next++); });
}

// Of one sequence and one head: a value for each row; the other columns become 0.
inline void set_first_column(CaseTensors& tensors, Arg arg, const std::vector<double>& column) {
  set_values(tensors, arg, [&](const ElementIndex& at) {
    return at.column == 0 ? column.at(static_cast<size_t>(at.row)) : 0.0;
  });
}

inline std::vector<double> values_of(const CaseTensors& tensors, Arg arg) {
  const bool backward = tensors.text().dir == Direction::backward;
  const Tensor& tensor = tensor_of(backward ? tensors.backward() : tensors.forward(), arg);
  std::vector<double> values;
  for_each_element(tensors.text(), arg, tensor, [&](int64_t offset, const ElementIndex&) {
    values.push_back(reference::read_element(tensor.data, tensor.dtype, offset));
  });
  return values;
}

// Forward, and for a backward Case backward if the target can, with everything poisoned; no
// judging.
inline void run_case(const CaseTensors& tensors, const Target& target) {
  const ChosenIsa chosen(target);
  EXPECT_EQ(run_poisoned(Direction::forward, tensors, target.backend), "");
  if (tensors.text().dir == Direction::backward && target.can_backward()) {
    EXPECT_EQ(run_poisoned(Direction::backward, tensors, target.backend), "");
  }
}

// The tensors of a Case, or of the nearest one for the target's fastest kernels.
inline CaseTensors fitted_tensors(const Target& target, std::string_view text) {
  return CaseTensors(target.fitted(parse_case(text)));
}

// Those of the arguments that the Case has: a Case fitted to a GPU has no gradients.
inline std::vector<Arg> given_of(const CaseTensors& tensors, std::initializer_list<Arg> args) {
  const bool backward = tensors.text().dir == Direction::backward;
  const Tensors& all = backward ? tensors.backward() : tensors.forward();
  std::vector<Arg> given;
  for (const Arg arg : args) {
    if (tensor_of(all, arg).given()) given.push_back(arg);
  }
  return given;
}

// Calls body once for each target; failures inside carry its name. Without a target the test fails,
// or is skipped where the wanted backend is one that other tests judge.
inline void for_each_target(const std::function<void(const Target&)>& body) {
  ASSERT_EQ(why_no_target(judged_targets()), "");
  if (targets().empty()) GTEST_SKIP() << why_no_target(targets());
  for (const Target& target : targets()) {
    SCOPED_TRACE(target.name());
    body(target);
  }
}

}  // namespace tilewise::test
