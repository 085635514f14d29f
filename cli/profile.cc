// tilewise profile CASE: measures the roofs, then both ways by turns, so that a slow moment of the
// machine meets both. With --html or --svg also at an eighth, a quarter and half of the length.
#include "cli/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "backend.h"
#include "case/case_tensors.h"
#include "case/device_mirror.h"
#include "cli/html_report.h"
#include "cli/machine.h"
#include "cli/neighbours.h"
#include "cli/pictures.h"
#include "cli/tensor_file.h"

namespace tilewise::cli {

namespace {

constexpr double kSampleSeconds = 5e-3;  // shorter calls are repeated within a sample
constexpr double kEnoughSeconds = 20;    // no further samples of a Case after this long
constexpr double kMatmulShare = 0.8;     // of the multiply-add peak, in the rest of a layer
constexpr int64_t kShortest = 64;

// A path with its plan, ready to run; or the reason why there is none.
struct Runner {
  ProfiledPath* path;
  std::unique_ptr<PreparedCall> call;
  std::vector<double> samples;

  void sample(Clock clock) {
    if (call->on_device()) {
      samples.push_back(call->time(1, clock).median_s);
      return;
    }
    double seconds = 0;
    int calls = 0;
    const double start = seconds_now(clock);
    while (seconds < kSampleSeconds) {
      call->run();
      ++calls;
      seconds = seconds_now(clock) - start;
    }
    samples.push_back(seconds / calls);
  }
};

// Standard attention's matrices may be more than the machine has.
std::string too_large(const Plan& plan) {
  const auto needed = static_cast<double>(plan.workspace_bytes());
  const auto available = static_cast<double>(available_memory_bytes());
  if (available <= 0 || needed <= 0.8 * available) return "";
  return fmt::format("it needs {} beside inputs and outputs, the machine has {} free",
                     bytes_text(needed), bytes_text(available));
}

Runner make_runner(ProfiledPath& path, const CaseTensors& tensors, const std::string& backend) {
  Runner runner{&path, nullptr, {}};
  Options options = tensors.options();
  options.backend = backend;
  const Direction direction = tensors.text().dir;
  const Tensors& measured =
      direction == Direction::backward ? tensors.backward() : tensors.forward();
  const bool on_device = takes_device_memory(backend);
  path.backend = backend;
  try {
    const Plan plan =
        make_plan(direction, on_device ? as_device_tensors(measured) : measured, options);
    path.backend = plan.backend();
    path.workspace_bytes = static_cast<int64_t>(plan.workspace_bytes());
    path.useful_flops = useful_flops(plan.problem(), measured);
    if (!on_device) path.why_not = too_large(plan);
    if (path.ran()) runner.call = std::make_unique<PreparedCall>(direction, measured, options);
  } catch (const Error& error) {
    if (error.status() != Status::unsupported && error.status() != Status::out_of_memory) throw;
    path.why_not = one_line(error.what());
  }
  return runner;
}

void run_by_turns(std::vector<Runner>& runners, int repetitions, Clock clock) {
  std::erase_if(runners, [](const Runner& runner) { return runner.call == nullptr; });
  const double start = seconds_now(Clock::wall);
  const auto spent = [start] { return seconds_now(Clock::wall) - start; };
  for (Runner& runner : runners) runner.call->run();  // touches the tensors
  for (int i = 0; i < repetitions && (i == 0 || spent() < kEnoughSeconds); ++i) {
    for (Runner& runner : runners) runner.sample(clock);
  }
  for (Runner& runner : runners) {
    runner.path->timing = {quantile(runner.samples, 0.5), quantile(runner.samples, 0.1),
                           quantile(runner.samples, 0.9), static_cast<int>(runner.samples.size())};
  }
}

bool on_device(const ProfileOptions& options) { return options.device == "cuda"; }

ProfiledCase measure_case(const Case& c, const ProfileOptions& options,
                          const MachineRoofs& machine) {
  ProfiledCase profiled;
  profiled.text = c;
  profiled.shape = shape_of(c);
  add_models(profiled, machine, on_device(options));
  const CaseTensors tensors(c, Poison::off);
  if (c.dir == Direction::backward) {  // backward reads out and lse
    PreparedCall(Direction::forward, tensors.forward(), tensors.options()).run();
  }
  std::vector<Runner> runners;
  runners.push_back(
      make_runner(profiled.standard, tensors, on_device(options) ? "gpu_standard" : "standard"));
  runners.push_back(make_runner(profiled.tiled, tensors, on_device(options) ? "gpu" : ""));
  run_by_turns(runners, options.repetitions, num_threads() == 1 ? Clock::thread_cpu : Clock::wall);
  if (!profiled.tiled.ran()) {
    throw InputError("profile: " + print_case(c) + ": " + profiled.tiled.why_not);
  }
  return profiled;
}

// Everything of the layer but attention: as fast as multiply-adds allow, but no faster than its
// weights can be read. Backward takes twice the operations.
LayerEstimate estimate_layer(const ProfileOptions& options, const ProfiledCase& main,
                             const MachineRoofs& machine) {
  LayerEstimate layer;
  layer.hidden = options.hidden > 0 ? options.hidden : main.text.hq * main.text.d;
  layer.ffn = options.ffn > 0 ? options.ffn : layer.hidden * 8 / 3;
  const double directions = main.text.dir == Direction::backward ? 2 : 1;
  const double flops = directions * layer_flops(main.shape, layer.hidden, layer.ffn);
  AttentionShape one_row = main.shape;
  one_row.batch = one_row.q_len = 1;
  one_row.sequences.clear();
  const double weights = layer_flops(one_row, layer.hidden, layer.ffn) / 2;
  const double weight_bytes = directions * weights * static_cast<double>(size_of(main.text.dtype));
  layer.rest_s =
      std::max(flops / (kMatmulShare * machine.flops_per_s), weight_bytes / machine.bytes_per_s);
  return layer;
}

// The Case at a part of its length; few rows (decode) stay, their keys get fewer.
std::vector<Case> shorter_cases(const Case& c) {
  std::vector<Case> cases;
  if (c.packed() || c.data == CaseData::file) return cases;
  const bool decode = tiled_schedule(shape_of(c), false, Accounting::full) == Schedule::decode;
  for (const int64_t part : {8, 4, 2}) {
    Case shorter = c;
    shorter.kv = c.kv / part;
    if (!decode) shorter.q = c.q / part;
    if (shorter.q >= 1 && shorter.kv >= kShortest) cases.push_back(shorter);
  }
  return cases;
}

Case only_case(const std::vector<std::string>& words) {
  const std::vector<Case> cases = cases_of(words);
  if (cases.size() > 1) {
    throw InputError(fmt::format("profile: {} Cases, expected one", cases.size()));
  }
  check_cases(cases);
  return cases[0];
}

// Pictures of time and memory need more than one length.
Profile measure(const ProfileOptions& options) {
  const Case c = only_case(options.words);
  const bool drawn = !options.html.empty() || !options.svg.empty();
  std::vector<Case> shorter;
  if (drawn) shorter = shorter_cases(c);
  Progress progress(options.shared.progress, "steps", static_cast<int64_t>(shorter.size() + 2));
  Profile result;
  const Neighbours neighbours;
  if (!on_device(options)) result.threads = num_threads();
  progress.begin("roofs of this machine");
  result.roofs = on_device(options) ? measure_gpu_roofs(0, c.dtype) : measure_roofs(result.threads);
  for (const Case& each : shorter) {
    progress.begin(print_case(each));
    result.lengths.push_back(measure_case(each, options, result.roofs.machine));
  }
  progress.begin(print_case(c));
  result.main = measure_case(c, options, result.roofs.machine);
  progress.clear();
  if (!on_device(options)) result.others_cores = neighbours.busy_cores();
  if (drawn) result.lengths.push_back(result.main);
  result.layer = estimate_layer(options, result.main, result.roofs.machine);
  result.advice = advice_of(result);
  return result;
}

}  // namespace

void add_models(ProfiledCase& profiled, const MachineRoofs& machine, bool on_device) {
  const bool backward = profiled.text.dir == Direction::backward;
  profiled.standard.name = "standard attention";
  profiled.tiled.name = "Tilewise";
  profiled.standard.schedule = backward ? Schedule::standard_backward : Schedule::standard;
  profiled.tiled.schedule = tiled_schedule(profiled.shape, backward, Accounting::full);
  ScheduleChoice choice;
  if (!on_device) choice.matrix_dtype = DType::f32;
  for (ProfiledPath* const path : {&profiled.standard, &profiled.tiled}) {
    choice.schedule = path->schedule;
    path->model = cost(profiled.shape, choice, machine);
  }
}

int profile(const ProfileOptions& options) {
  if (options.from.empty() == options.words.empty()) {
    throw InputError("profile: expected a Case to measure, or --from FILE to draw");
  }
  if (!options.html.empty()) check_writable(options.html);
  if (!options.svg.empty()) check_writable(options.svg + "/roofline.svg");
  Report report{options.shared.command, utc_date(), {}};
  if (!options.from.empty()) report = read_report(options.from);
  const Profile result =
      options.from.empty() ? measure(options) : read_profile(report.rows, options.from);
  if (!options.html.empty()) write_html_report(result, report, options.html);
  if (!options.svg.empty()) write_pictures(result, options.svg);
  if (options.shared.format == Format::json) {
    print_json(options.shared.command, profile_rows(result));
  } else if (options.shared.format == Format::csv) {
    print_csv(profile_rows(result));
  } else {
    print_profile(result);
    for (const std::string& place : {options.html, options.svg}) {
      if (!place.empty()) fmt::print("\nwrote {}\n", place);
    }
  }
  return 0;
}

}  // namespace tilewise::cli
