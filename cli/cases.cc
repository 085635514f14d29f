// The Case words of a command line, and what is refused before anything is allocated.
#include <fmt/format.h>

#include <algorithm>

#include "case/layout.h"
#include "case/suggest.h"
#include "cli/machine.h"
#include "cli/measure.h"
#include "cli/tensor_file.h"
#include "cli/verbs.h"
#include "problem.h"

namespace tilewise::cli {

std::vector<Case> cases_of(const std::vector<std::string>& words) {
  std::vector<Case> cases;
  std::string joined;
  for (const std::string& word : words) {
    if (word.find(' ') != std::string::npos) {
      cases.push_back(parse_case(word));
    } else {
      joined += (joined.empty() ? "" : " ") + word;
    }
  }
  if (!joined.empty() || cases.empty()) cases.push_back(parse_case(joined));
  return cases;
}

namespace {

// Bytes of the tensors whose size grows with the Case.
double tensor_bytes(const Case& c) {
  double rows = static_cast<double>(c.b) * static_cast<double>(c.q);
  double keys = static_cast<double>(c.b) * static_cast<double>(c.kv);
  if (c.packed()) {
    rows = keys = 0;
    for (const int64_t length : c.qlens) rows += static_cast<double>(length);
    for (const int64_t length : c.kvlens) keys += static_cast<double>(length);
  }
  const double widths = static_cast<double>(c.d) + static_cast<double>(c.dv);
  const double elements =
      widths * (rows * static_cast<double>(c.hq) + keys * static_cast<double>(c.hkv));
  const double directions = c.dir == Direction::backward ? 2 : 1;
  return elements * static_cast<double>(size_of(c.dtype)) * directions;
}

// check() on the layouts alone, without memory.
void check_problem(const Case& c) {
  const bool backward = c.dir == Direction::backward;
  Tensors tensors;
  for (const Placement& placement : placements_of(c)) {
    for (const auto& view : placement.views) tensor_of(tensors, view.arg) = view.tensor;
  }
  if (!backward) {
    for (const Arg arg : {Arg::d_out, Arg::d_lse, Arg::d_q, Arg::d_k, Arg::d_v, Arg::d_sink}) {
      tensor_of(tensors, arg) = Tensor();
    }
  }
  make_problem(c.dir, tensors, options_of(c));
}

}  // namespace

void check_cases(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const double bytes = tensor_bytes(c);
    const auto available = static_cast<double>(available_memory_bytes());
    if (available > 0 && bytes > available) {
      throw InputError(fmt::format("{}: its tensors take {}, the machine has {} free",
                                   print_case(c), bytes_text(bytes), bytes_text(available)));
    }
    check_problem(c);
  }
}

std::vector<std::string> backend_names() {
  Tensors tensors;
  tensors.q = tensors.k = tensors.v = tensors.out = Tensor::bshd(nullptr, DType::f32, 1, 1, 1, 1);
  std::vector<std::string> names;
  for (const BackendAnswer& answer : why_not(Direction::forward, tensors)) {
    names.push_back(answer.backend);
  }
  return names;
}

void check_backend(const std::string& name) {
  const std::vector<std::string> known = backend_names();
  if (name.empty() || std::find(known.begin(), known.end(), name) != known.end()) return;
  const std::string hint =
      suggestion(name, std::vector<std::string_view>(known.begin(), known.end()));
  throw InputError(
      fmt::format("backend \"{}\" is not known{}", name,
                  hint.empty() ? fmt::format(", expected {}", fmt::join(known, ", ")) : hint));
}

}  // namespace tilewise::cli
