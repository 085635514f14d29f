// Running a Case and judging every element of its results.
#include "case/verify.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "backend.h"
#include "case/device_mirror.h"
#include "case/hidden_nan.h"
#include "case/tolerance.h"
#include "problem.h"
#include "reference/reference.h"

namespace tilewise {

namespace {

using reference::Position;
using reference::Values;

// Multiplications of the reference that a check may cost, about a second; but never fewer rows or
// keys than these.
constexpr double kMostWork = 5e8;
constexpr int64_t kFewestSampled = 12;
constexpr size_t kMostFailures = 20;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// Positions in [0, longest): ends, neighbours of tile edges, the last of every sequence, and
// pseudo-random ones up to `count`.
std::vector<int64_t> sample(const std::vector<int64_t>& lens, int64_t longest, int64_t count) {
  std::set<int64_t> chosen;
  const auto add = [&](int64_t at) {
    if (at >= 0 && at < longest && static_cast<int64_t>(chosen.size()) < count) chosen.insert(at);
  };
  for (const int64_t at : {int64_t{0}, longest - 1, int64_t{63}, int64_t{64}, longest / 2,
                           longest - 2, int64_t{1}, int64_t{127}, int64_t{128}}) {
    add(at);
  }
  for (const int64_t len : lens) add(len - 1);
  for (uint64_t i = 0; i < static_cast<uint64_t>(4 * count); ++i) {
    add(static_cast<int64_t>(mix_bits(i) % static_cast<uint64_t>(longest)));
  }
  return {chosen.begin(), chosen.end()};
}

reference::Selection select(const Case& c) {
  reference::Selection selection;
  const double pair_work = static_cast<double>(c.b * c.hq) * static_cast<double>(c.d + c.dv) *
                           (c.dir == Direction::backward ? 4.0 : 1.0);
  if (pair_work * static_cast<double>(c.q) * static_cast<double>(c.kv) <= kMostWork) {
    return selection;
  }
  const auto affordable = [&](int64_t other) {
    const double rows =
        kMostWork / 2 / (pair_work * static_cast<double>(std::max<int64_t>(other, 1)));
    return std::max(kFewestSampled, static_cast<int64_t>(rows));
  };
  selection.all_rows = c.q <= affordable(c.kv);
  selection.all_keys = c.kv <= affordable(c.q);
  if (!selection.all_rows) selection.rows = sample(c.qlens, c.q, affordable(c.kv));
  if (!selection.all_keys) selection.keys = sample(c.kvlens, c.kv, affordable(c.q));
  return selection;
}

// Offset of an element in any of the tensors.
int64_t offset_of(bool packed, const Tensor& tensor, const Position& position, int64_t head) {
  if (tensor.dtype == DType::f32 && tensor.ndim == (packed ? 2 : 3)) {  // lse
    const size_t first = packed ? 0 : 1;
    return head * tensor.stride[first] +
           (packed ? position.packed_row : position.sequence * tensor.stride[0] + position.index);
  }
  const size_t first = packed ? 0 : 1;
  const int64_t row = packed ? position.packed_row : position.index;
  return (packed ? 0 : position.sequence * tensor.stride[0]) + row * tensor.stride[first] +
         head * tensor.stride[first + 1];
}

class Judge {
 public:
  // `hidden`: of a backend whose rows may turn NaN, else null.
  Judge(const Case& c, Verdict& verdict, const HiddenNan* hidden = nullptr)
      : case_(c), verdict_(verdict), hidden_(hidden) {}

  // values: [positions, heads, columns].
  void compare(Arg arg, const Tensor& tensor, const std::vector<Position>& positions,
               int64_t columns, const Values& values) {
    if (!tensor.given()) return;
    begin(arg);
    const auto rows = static_cast<int64_t>(positions.size());
    const int64_t heads =
        rows == 0 ? 0 : static_cast<int64_t>(values.value.size()) / rows / columns;
    size_t next = 0;
    for (const Position& position : positions) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t first = offset_of(case_.packed(), tensor, position, h);
        for (int64_t d = 0; d < columns; ++d, ++next) {
          if (hidden_ != nullptr && arg == Arg::out && is_nan(tensor, first + d) &&
              hidden_->may_reach(position, h, d)) {
            continue;
          }
          element(tensor, first + d, values, next, {position.sequence, position.index, h, d});
        }
      }
    }
    end();
  }

  void compare_sink(const Tensor& tensor, const Values& values) {
    if (!tensor.given() || values.value.empty()) return;
    begin(Arg::d_sink);
    for (size_t h = 0; h < values.value.size(); ++h) {
      element(tensor, static_cast<int64_t>(h), values, h, {0, 0, static_cast<int64_t>(h), 0});
    }
    end();
  }

 private:
  static bool is_nan(const Tensor& tensor, int64_t offset) {
    return std::isnan(reference::read_element(tensor.data, tensor.dtype, offset));
  }
  void begin(Arg arg) {
    current_ = {};
    current_.name = name_of(arg);
    misses_ = 0;
  }
  void element(const Tensor& tensor, int64_t offset, const Values& values, size_t at,
               const ElementIndex& index) {
    const Expected expected{values.value[at], values.low[at], values.high[at]};
    const double got = reference::read_element(tensor.data, tensor.dtype, offset);
    const double ratio = error_ratio(tensor.dtype, case_.dtype, expected, got);
    ++current_.checked;
    if (!(ratio <= 1)) ++misses_;
    if (ratio > current_.worst_ratio || (current_.where.empty() && current_.checked == 1)) {
      current_.worst_ratio = ratio;
      current_.where = text_of(index);
      current_.got = got;
      current_.expected = expected.value;
    }
  }
  void end() {
    if (misses_ > 0) {
      verdict_.failures.push_back(
          current_.name + ": " + std::to_string(misses_) + " of " +
          std::to_string(current_.checked) + " elements are out of bounds, worst at " +
          current_.where + ": got " + number(current_.got) + ", expected " +
          number(current_.expected) + ", " + number(current_.worst_ratio) + " x the bound");
    }
    verdict_.tensors.push_back(current_);
  }

  const Case& case_;
  Verdict& verdict_;
  const HiddenNan* hidden_;
  TensorVerdict current_;
  int64_t misses_ = 0;
};

// Forward, and backward when that is the farthest.
void run_once(const CaseTensors& tensors, const std::string& backend, Direction farthest,
              std::vector<std::string>& failures) {
  const auto run = [&](Direction direction) {
    const std::string overrun = run_poisoned(direction, tensors, backend);
    if (!overrun.empty()) failures.push_back(overrun);
  };
  run(Direction::forward);
  if (farthest == Direction::backward) run(Direction::backward);
}

// A second run on freshly poisoned outputs.
void check_repeatable(CaseTensors& tensors, const std::string& backend, Direction farthest,
                      Verdict& verdict) {
  if (farthest == Direction::backward && !tensors.text().deterministic) return;
  const std::vector<std::byte> first = tensors.output_bytes();
  tensors.poison_outputs();
  run_once(tensors, backend, farthest, verdict.failures);
  if (tensors.output_bytes() != first) {
    verdict.failures.push_back("a second run gave other bits");
  }
}

// The call on a copy of everything in device memory, which then comes back.
std::string run_mirrored(const Plan& plan, std::vector<std::span<std::byte>> memory,
                         const Tensors& call, const PoisonedWorkspace& workspace) {
  memory.push_back(workspace.memory().accessible());
  DeviceMirror mirror(std::move(memory), plan.problem().device.id);
  mirror.upload();
  plan.run(mirror.on_device(call), mirror.address_of(workspace.data()), workspace.bytes());
  return mirror.download();
}

std::string rerun_command(Case c, const std::string& backend, Direction farthest) {
  if (c.dir != farthest) {  // the words that only backward knows go
    c.dir = farthest;
    c.dlse = false;
    c.want.clear();
  }
  std::string command;
  if (const char* isa = std::getenv("TILEWISE_ISA"); isa != nullptr && *isa != '\0') {
    command = "TILEWISE_ISA=" + std::string(isa) + " ";
  }
  return command + "tilewise check \"" + print_case(c) + "\" --backend " + backend;
}

}  // namespace

double Verdict::worst_ratio() const {
  double worst = 0;
  for (const TensorVerdict& tensor : tensors) worst = std::max(worst, tensor.worst_ratio);
  return worst;
}

std::string run_poisoned(Direction direction, const CaseTensors& tensors,
                         const std::string& backend) {
  Options options = tensors.options();
  options.backend = backend;
  const Tensors& call = direction == Direction::forward ? tensors.forward() : tensors.backward();
  const bool mirrored = takes_device_memory(backend);
  const Plan plan = make_plan(direction, mirrored ? as_device_tensors(call) : call, options);
  const PoisonedWorkspace workspace(plan.workspace_bytes());
  const std::string operation = direction == Direction::forward ? "forward" : "backward";
  std::string overrun;
  if (mirrored) {
    overrun = run_mirrored(plan, tensors.memory(), call, workspace);
  } else {
    plan.run(call, workspace.data(), workspace.bytes());
  }
  if (!overrun.empty()) return operation + ": " + overrun;
  if (!workspace.overrun()) return "";
  return operation + " wrote outside its workspace of " + std::to_string(workspace.bytes()) +
         " bytes";
}

// What the results are compared with. Sampled gradients are computed from the out and lse of each
// run, everything else once.
struct CaseVerifier::Exact {
  reference::Selection selection;
  std::optional<reference::Result64> forward;
  std::optional<reference::Gradients64> backward;

  bool sampled() const { return !selection.all_rows || !selection.all_keys; }
  void judge_forward(const CaseTensors& tensors, bool on_device, Verdict& verdict);
  void judge_backward(const CaseTensors& tensors, Verdict& verdict);
};

void CaseVerifier::Exact::judge_forward(const CaseTensors& tensors, bool on_device,
                                        Verdict& verdict) {
  const Case& c = tensors.text();
  const Tensors& call = tensors.forward();
  const Problem problem = make_problem(Direction::forward, call, tensors.options());
  if (!forward.has_value()) forward = reference::forward(problem, call, selection);
  std::optional<HiddenNan> hidden;
  if (on_device) hidden.emplace(problem, call);
  Judge judge(c, verdict, on_device ? &*hidden : nullptr);
  judge.compare(Arg::out, call.out, forward->rows, c.dv, forward->out);
  judge.compare(Arg::lse, call.lse, forward->rows, 1, forward->lse);
}

void CaseVerifier::Exact::judge_backward(const CaseTensors& tensors, Verdict& verdict) {
  const Case& c = tensors.text();
  const Tensors& call = tensors.backward();
  if (sampled() || !backward.has_value()) {
    const Problem problem = make_problem(Direction::backward, call, tensors.options());
    backward =
        reference::backward(problem, call, selection,
                            sampled() ? reference::RowSums::given : reference::RowSums::computed);
  }
  Judge judge(c, verdict);
  judge.compare(Arg::d_q, call.d_q, backward->rows, c.d, backward->d_q);
  judge.compare(Arg::d_k, call.d_k, backward->keys, c.d, backward->d_k);
  judge.compare(Arg::d_v, call.d_v, backward->keys, c.dv, backward->d_v);
  judge.compare_sink(call.d_sink, backward->d_sink);
}

CaseVerifier::CaseVerifier(CaseTensors& tensors)
    : tensors_(tensors), exact_(std::make_unique<Exact>()) {
  exact_->selection = select(tensors.text());
}

CaseVerifier::~CaseVerifier() = default;

Verdict CaseVerifier::verify(const std::string& backend, Direction farthest) {
  Verdict verdict;
  const Direction last = std::min(tensors_.text().dir, farthest);
  verdict.rerun = rerun_command(tensors_.text(), backend, last);
  try {
    tensors_.poison_outputs();
    run_once(tensors_, backend, last, verdict.failures);
    exact_->judge_forward(tensors_, takes_device_memory(backend), verdict);
    if (last == Direction::backward) exact_->judge_backward(tensors_, verdict);
    for (std::string& text : tensors_.violations(last)) {
      verdict.failures.push_back(std::move(text));
    }
    check_repeatable(tensors_, backend, last, verdict);
  } catch (const Error& error) {
    verdict.supported = error.status() != Status::unsupported;
    verdict.failures.push_back(error.what());
  }
  if (verdict.failures.size() > kMostFailures) verdict.failures.resize(kMostFailures);
  verdict.passed = verdict.failures.empty();
  return verdict;
}

Verdict verify_case(const Case& c, const std::string& backend) {
  CaseTensors tensors(c);
  return CaseVerifier(tensors).verify(backend);
}

}  // namespace tilewise
