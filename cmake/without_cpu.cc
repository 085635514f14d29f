// Stand-in for src/cpu while it is being written: weak, so that the real definitions win. The
// library links, the reference backend runs, `cpu` and `standard` say that they are not built.
#include "backend.h"

namespace tilewise {
namespace {

class Absent final : public Backend {
 public:
  explicit Absent(std::string_view name) : name_(name) {}
  std::string_view name() const override { return name_; }
  bool only_by_name() const override { return true; }
  std::vector<std::string> why_not(const Problem&) const override { return {"not built"}; }
  std::unique_ptr<const BackendPlan> plan(const Problem&) const override { return nullptr; }

 private:
  std::string_view name_;
};

}  // namespace

[[gnu::weak]] const Backend& cpu_backend() {
  static const Absent backend("cpu");
  return backend;
}
[[gnu::weak]] const Backend& standard_backend() {
  static const Absent backend("standard");
  return backend;
}
[[gnu::weak]] int num_threads() { return 1; }
[[gnu::weak]] void set_num_threads(int) {}
[[gnu::weak]] void set_executor(const Executor&) {}

}  // namespace tilewise
