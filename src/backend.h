// The contract between plan and backends: a backend says why it cannot do a problem, plans it, runs
// it. plan.cc holds the ordered list; backends never include each other.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "problem.h"
#include "tilewise/tilewise.hpp"

namespace tilewise {

class Backend;

// What a backend decided for one problem. Immutable; run() may be called from many threads.
class BackendPlan {
 public:
  virtual ~BackendPlan() = default;
  virtual const Backend& backend() const = 0;
  virtual size_t workspace_bytes() const = 0;
  // "key: value" lines about the choice, for Plan::describe().
  virtual std::string describe() const = 0;
  // tensors passed check_tensors() and without_idle_strides(); workspace is 64-byte aligned and
  // large enough. No allocation.
  virtual void run(const Tensors& tensors, void* workspace, void* stream) const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // Where the tensors of its calls lie.
  virtual DeviceType memory() const { return DeviceType::cpu; }
  // True: only Options::backend can choose it (reference, standard).
  virtual bool only_by_name() const = 0;
  // Every reason against a problem that passed check(); empty = it can.
  virtual std::vector<std::string> why_not(const Problem& problem) const = 0;
  // why_not() was empty.
  virtual std::unique_ptr<const BackendPlan> plan(const Problem& problem) const = 0;
};

// One function for each backend, defined in its own folder.
const Backend& gpu_backend();           // src/gpu/backend.cc
const Backend& gpu_standard_backend();  // src/gpu/standard.cc
const Backend& cpu_backend();           // src/cpu/backend.cc
const Backend& standard_backend();      // src/cpu/standard.cc
const Backend& reference_backend();     // src/reference/backend.cc

// In the order they are asked.
std::span<const Backend* const> backends();

// The name that decides, if any does: Options::backend, else TILEWISE_BACKEND, else "".
std::string wanted_backend(const Options& options);

// Whether the backend of this name takes tensors in device memory; false for an unknown name.
bool takes_device_memory(std::string_view backend);

}  // namespace tilewise
