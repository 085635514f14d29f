// Backend "cpu": tiled attention on the processor, in the instruction set that fits it.
#include "backend.h"

#include "cpu/isa.h"
#include "cpu/plans.h"

namespace tilewise {

namespace cpu {

std::string described(const std::string& name, const std::string& value) {
  return name + ": " + value + "\n";
}

namespace {

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  bool only_by_name() const override { return false; }
  std::vector<std::string> why_not(const Problem& problem) const override {
    std::vector<std::string> reasons;
    if (problem.device.type != DeviceType::cpu) {
      reasons.emplace_back("the tensors are not in CPU memory");
    }
    std::string reason;
    if (choose_kernels(reason) == nullptr) reasons.push_back(reason);
    return reasons;
  }
  std::unique_ptr<const BackendPlan> plan(const Problem& problem) const override {
    std::string reason;
    const Kernels* const kernels = choose_kernels(reason);
    if (kernels == nullptr) throw Error(Status::unsupported, "tilewise: " + reason);
    return problem.direction == Direction::forward ? plan_forward(problem, *kernels)
                                                   : plan_backward(problem, *kernels);
  }
};

}  // namespace
}  // namespace cpu

const Backend& cpu_backend() {
  static const cpu::CpuBackend backend;
  return backend;
}

}  // namespace tilewise
