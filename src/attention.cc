// forward() and backward(): check -> plan -> run, with a small plan cache for each thread and a
// workspace that lives for the call.
#include <new>
#include <vector>

#include "backend.h"
#include "device.h"
#include "problem.h"

namespace tilewise {

namespace {

// The alignment that Plan::run() asks for.
constexpr std::align_val_t kWorkspaceAlignment{64};

// In the memory that the tensors are in; on a GPU it lives between two points of the stream.
class Workspace {
 public:
  Workspace(size_t bytes, Device device, void* stream) : device_(device), stream_(stream) {
    if (device.type == DeviceType::cuda) {
      data_ = allocate_in_stream(bytes, device.id, stream);
    } else if (bytes > 0) {
      data_ = ::operator new(bytes, kWorkspaceAlignment);
    }
  }
  ~Workspace() {
    if (device_.type == DeviceType::cuda) {
      free_in_stream(data_, device_.id, stream_);
    } else {
      ::operator delete(data_, kWorkspaceAlignment);
    }
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  void* data() const { return data_; }

 private:
  Device device_;
  void* stream_;
  void* data_ = nullptr;
};

bool same_layouts(const Problem& problem, const Tensors& tensors) {
  for (int i = 0; i < kArgCount; ++i) {
    const Tensor& planned = problem.layouts[static_cast<size_t>(i)];
    const Tensor& given = tensor_of(tensors, static_cast<Arg>(i));
    if (planned.dtype != given.dtype || planned.device != given.device ||
        planned.ndim != given.ndim || planned.size != given.size ||
        planned.stride != given.stride) {
      return false;
    }
  }
  return true;
}

// A plan captures the thread count, so it is part of the key.
struct CachedPlan {
  Plan plan;
  int threads;
};

// The plans of this thread's last calls, newest last. A training step has a few shapes, not many.
constexpr size_t kCachedPlans = 16;

Plan cached_plan(Direction direction, const Tensors& tensors, const Options& options) {
  thread_local std::vector<CachedPlan> cache;
  const int threads = num_threads();
  for (const CachedPlan& entry : cache) {
    const Problem& problem = entry.plan.problem();
    if (entry.threads == threads && problem.direction == direction && problem.options == options &&
        problem.alignment == alignment_of(tensors) && same_layouts(problem, tensors)) {
      return entry.plan;
    }
  }
  Plan plan = make_plan(direction, tensors, options);
  if (cache.size() == kCachedPlans) cache.erase(cache.begin());
  cache.push_back({plan, threads});
  return plan;
}

void plan_and_run(Direction direction, const Tensors& given, const Options& options, void* stream) {
  const Tensors tensors = without_idle_strides(given);  // as the cached problems hold them
  const Plan plan = cached_plan(direction, tensors, options);
  const Workspace workspace(plan.workspace_bytes(), plan.problem().device, stream);
  plan.run(tensors, workspace.data(), plan.workspace_bytes(), stream);
}

}  // namespace

void forward(const Tensors& tensors, const Options& options, void* stream) {
  plan_and_run(Direction::forward, tensors, options, stream);
}

void backward(const Tensors& tensors, const Options& options, void* stream) {
  plan_and_run(Direction::backward, tensors, options, stream);
}

}  // namespace tilewise
