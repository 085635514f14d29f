// Plan: the ordered list of backends, and how one of them is chosen. Automatic choice takes the
// first backend without a reason against the problem; nothing falls back silently to a slower one
// that must be named.
#include <cstdlib>
#include <string>

#include "backend.h"
#include "error.h"
#include "problem.h"

namespace tilewise {

std::span<const Backend* const> backends() {
  static const Backend* const list[] = {&gpu_backend(), &cpu_backend(), &standard_backend(),
                                        &reference_backend()};
  return list;
}

std::string wanted_backend(const Options& options) {
  if (!options.backend.empty()) return options.backend;
  const char* from_environment = std::getenv("TILEWISE_BACKEND");
  return from_environment == nullptr ? "" : from_environment;
}

namespace {

// nullptr: there is none of this name. The GPU's baseline has no column in lists of backends.
const Backend* backend_named(std::string_view name) {
  for (const Backend* backend : backends()) {
    if (backend->name() == name) return backend;
  }
  return gpu_standard_backend().name() == name ? &gpu_standard_backend() : nullptr;
}

}  // namespace

bool takes_device_memory(std::string_view name) {
  const Backend* const backend = backend_named(name);
  return backend != nullptr && backend->memory() == DeviceType::cuda;
}

namespace {

std::vector<BackendAnswer> ask_backends(const Problem& problem) {
  std::vector<BackendAnswer> answers;
  for (const Backend* backend : backends()) {
    answers.push_back({std::string(backend->name()), backend->why_not(problem)});
  }
  return answers;
}

const Backend& find_backend(const Problem& problem, const std::string& name) {
  if (const Backend* const backend = backend_named(name)) return *backend;
  std::string known;
  for (const Backend* backend : backends()) {
    if (!known.empty()) known += ", ";
    known += backend->name();
  }
  const bool from_option = !problem.options.backend.empty();
  throw_invalid(operation_of(problem.direction), "backend", "\"" + name + "\"", "one of " + known,
                from_option ? "Options::backend" : "TILEWISE_BACKEND");
}

const Backend& choose_backend(const Problem& problem) {
  const std::string name = wanted_backend(problem.options);
  if (!name.empty()) {
    const Backend& backend = find_backend(problem, name);
    std::vector<std::string> reasons = backend.why_not(problem);
    if (reasons.empty()) return backend;
    throw_unsupported(operation_of(problem.direction), "the named backend cannot do this",
                      {{name, std::move(reasons)}});
  }
  for (const Backend* backend : backends()) {
    if (!backend->only_by_name() && backend->why_not(problem).empty()) return *backend;
  }
  throw_unsupported(operation_of(problem.direction), "no backend can do this",
                    ask_backends(problem));
}

}  // namespace

Plan make_plan(Direction direction, const Tensors& tensors, const Options& options) {
  auto problem = std::make_shared<const Problem>(make_problem(direction, tensors, options));
  std::shared_ptr<const BackendPlan> decided = choose_backend(*problem).plan(*problem);
  return Plan(std::move(problem), std::move(decided));
}

std::vector<BackendAnswer> why_not(Direction direction, const Tensors& tensors,
                                   const Options& options) {
  return ask_backends(make_problem(direction, tensors, options));
}

size_t Plan::workspace_bytes() const { return decided_->workspace_bytes(); }

std::string_view Plan::backend() const { return decided_->backend().name(); }

std::string Plan::describe() const {
  std::string text = "backend: ";
  text.append(backend()).append("\n").append(decided_->describe());
  text.append("workspace: ").append(std::to_string(workspace_bytes())).append(" bytes\n");
  return text;
}

void Plan::run(const Tensors& tensors, void* workspace, size_t workspace_bytes,
               void* stream) const {
  const std::string_view operation = operation_of(problem_->direction);
  check_tensors(*problem_, tensors);
  const size_t needed = decided_->workspace_bytes();
  if (workspace_bytes < needed) {
    throw Error(Status::workspace_too_small,
                std::string(operation) + ": workspace is " + std::to_string(workspace_bytes) +
                    " bytes, expected at least " + std::to_string(needed) +
                    " (from Plan::workspace_bytes)");
  }
  if (needed > 0 && (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 64 != 0)) {
    throw_invalid(operation, "workspace", workspace == nullptr ? "null" : "not 64-byte aligned",
                  "a 64-byte aligned pointer", "");
  }
  decided_->run(without_idle_strides(tensors), workspace, stream);
}

}  // namespace tilewise
