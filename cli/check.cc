// tilewise check CASE...: each backend against float64, by the same verify_case that the tests use.
// The worst ratio is the largest error over its bound: below 1 passes. Exit status 1: one failed.
#include <fmt/format.h>

#include <algorithm>

#include "case/verify.h"
#include "cli/verbs.h"
#include "device.h"

namespace tilewise::cli {

namespace {

std::vector<std::string> wanted_backends(const std::string& named) {
  if (!named.empty()) return {named};
  std::vector<std::string> names = backend_names();
  std::erase(names, "reference");
  if (device_count() == 0) std::erase(names, "gpu");
  return names;
}

const TensorVerdict* worst_of(const Verdict& verdict) {
  const auto worst = std::max_element(
      verdict.tensors.begin(), verdict.tensors.end(),
      [](const TensorVerdict& a, const TensorVerdict& b) { return a.worst_ratio < b.worst_ratio; });
  return worst == verdict.tensors.end() ? nullptr : &*worst;
}

const char* word_of(const Verdict& verdict) {
  return !verdict.supported ? "skip" : verdict.passed ? "pass" : "FAIL";
}

void print_text(const std::string& text, const std::string& backend, const Verdict& verdict) {
  fmt::print("{}  {:<9} ", word_of(verdict), backend);
  const TensorVerdict* worst = worst_of(verdict);
  if (verdict.supported && worst != nullptr) {
    fmt::print("worst {:.3f} of the bound ({}{})  ", verdict.worst_ratio(), worst->name,
               worst->where.empty() ? "" : " at " + worst->where);
  }
  fmt::print("{}\n", text);
  if (verdict.passed) return;
  for (const std::string& failure : verdict.failures) {
    fmt::print("      {}\n", one_line(failure));
  }
  if (verdict.supported) fmt::print("      rerun: {}\n", verdict.rerun);
}

Row row_of(const std::string& text, const std::string& backend, const Verdict& verdict) {
  Row row;
  row.add("case", text).add("backend", backend).add("supported", verdict.supported);
  if (verdict.supported) {
    row.add("passed", int64_t{verdict.passed ? 1 : 0});
    row.add("failed", int64_t{verdict.passed ? 0 : 1});
    row.add("worst_ratio", verdict.worst_ratio());
  }
  if (!verdict.failures.empty()) {
    row.add("reason", one_line(fmt::format("{}", fmt::join(verdict.failures, "; "))));
  }
  return row;
}

struct Totals {
  int passed = 0;
  int failed = 0;
  int refused = 0;  // cases that no backend took
  double worst = 0;
};

}  // namespace

int check(const CheckOptions& options) {
  check_backend(options.backend);
  const std::vector<Case> cases = cases_of(options.words);
  check_cases(cases);
  const std::vector<std::string> names = wanted_backends(options.backend);
  const bool text = options.shared.format == Format::text;
  Progress progress(options.shared.progress, "checks",
                    static_cast<int64_t>(cases.size() * names.size()));
  std::vector<Row> rows;
  Totals totals;
  for (const Case& c : cases) {
    const std::string line = print_case(c);
    bool taken = false;
    for (const std::string& name : names) {
      progress.begin(name + " " + line);
      const Verdict verdict = verify_case(c, name);
      progress.clear();
      taken = taken || verdict.supported;
      if (verdict.supported) {
        ++(verdict.passed ? totals.passed : totals.failed);
        totals.worst = std::max(totals.worst, verdict.worst_ratio());
      }
      rows.push_back(row_of(line, name, verdict));
      if (text) print_text(line, name, verdict);
    }
    if (!taken) ++totals.refused;
  }
  if (options.shared.format == Format::json) print_json(options.shared.command, rows);
  if (options.shared.format == Format::csv) print_csv(rows);
  if (text) {
    fmt::print("{} passed, {} failed, worst {:.3f} of the bound\n", totals.passed, totals.failed,
               totals.worst);
    if (totals.refused > 0) fmt::print("{} cases that no backend can do\n", totals.refused);
  }
  return totals.failed + totals.refused > 0 ? 1 : 0;
}

}  // namespace tilewise::cli
