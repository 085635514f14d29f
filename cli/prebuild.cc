// tilewise prebuild CASE...: compiles the GPU kernels of Cases into a pack, so that machines
// without NVRTC run them and others start at once. Needs NVRTC, but no GPU.
#include "prebuild.h"

#include <fmt/format.h>

#include <set>

#include "case/device_mirror.h"
#include "case/layout.h"
#include "cli/tensor_file.h"
#include "cli/verbs.h"

namespace tilewise::cli {

namespace {

// The Case's forward call in device memory, by its layouts alone.
Problem device_problem(const Case& c) {
  Tensors tensors;
  for (const Placement& placement : placements_of(c)) {
    for (const auto& view : placement.views) tensor_of(tensors, view.arg) = view.tensor;
  }
  return make_problem(Direction::forward, as_device_tensors(tensors), options_of(c));
}

}  // namespace

int prebuild(const PrebuildOptions& options) {
  const std::vector<Case> cases = cases_of(options.words);
  for (const Case& c : cases) {
    if (c.dir == Direction::forward) continue;
    throw InputError(print_case(c) + ": the GPU has no backward kernel yet");
  }
  const std::string pack = options.pack.empty() ? own_pack() : options.pack;
  Progress progress(options.shared.progress, "kernels", static_cast<int64_t>(cases.size()));
  std::set<std::string> made;
  for (const Case& c : cases) {
    progress.begin(print_case(c));
    made.insert(prebuild_kernel(device_problem(c), options.arch, pack));
  }
  progress.clear();
  for (const std::string& kernel : made) fmt::print("{}\n", kernel);
  fmt::print("{} kernels for {} in {}\n", made.size(), options.arch, pack);
  return 0;
}

}  // namespace tilewise::cli
