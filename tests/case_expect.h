// What most tests are made of: expect_matches_reference("q=64 d=64 mask=causal") runs the Case on
// every backend and instruction set of this machine and compares it with float64. A failure prints
// the command that reruns it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "case/case.h"
#include "case/case_tensors.h"
#include "case/verify.h"
#include "reference/element.h"
#include "tests/targets.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::test {

// A call with any tensors: a plan of its own (the library's plan cache does not know about
// TILEWISE_ISA), a poisoned workspace, no judging.
inline void run_call(Direction direction, const Tensors& tensors, Options options,
                     const Target& target) {
  const ChosenIsa chosen(target);
  options.backend = target.backend;
  const Plan plan = make_plan(direction, tensors, options);
  const PoisonedWorkspace workspace(plan.workspace_bytes());
  plan.run(tensors, workspace.data(), workspace.bytes());
  EXPECT_FALSE(workspace.overrun());
}

// Judges tensors, which a test may have set by hand, on each target.
inline void expect_tensors_match(CaseTensors& tensors) {
  CaseVerifier verifier(tensors);
  for (const Target& target : judged_targets()) {
    if (!worth_running(target, tensors.text())) continue;
    const ChosenIsa chosen(target);
    const Verdict verdict = verifier.verify(target.backend);
    if (verdict.passed || target.may_refuse(verdict)) continue;
    std::string text;
    for (const std::string& failure : verdict.failures) text += "\n  " + failure;
    ADD_FAILURE() << verdict.rerun << text;
  }
}

inline void expect_matches_reference(std::string_view text) {
  CaseTensors tensors(parse_case(text));
  expect_tensors_match(tensors);
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
  for_each_element(tensors.text(), arg, tensor, [&](int64_t offset, const ElementIndex& index) {
    reference::write_element(tensor.data, tensor.dtype, offset, f(index));
  });
  tensors.seal_inputs();
}

inline void set_values(CaseTensors& tensors, Arg arg, const std::vector<double>& values) {
  size_t next = 0;
  set_values(tensors, arg, [&](const ElementIndex&) { return values.at(next++); });
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

// Forward, and for a backward Case backward, with everything poisoned; no judging.
inline void run_case(const CaseTensors& tensors, const Target& target) {
  const ChosenIsa chosen(target);
  EXPECT_EQ(run_poisoned(Direction::forward, tensors, target.backend), "");
  if (tensors.text().dir == Direction::backward) {
    EXPECT_EQ(run_poisoned(Direction::backward, tensors, target.backend), "");
  }
}

// Calls body once for each target; failures inside carry its name.
inline void for_each_target(const std::function<void(const Target&)>& body) {
  for (const Target& target : targets()) {
    SCOPED_TRACE(target.name());
    body(target);
  }
}

}  // namespace tilewise::test
