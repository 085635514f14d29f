// tilewise bench CASE...: the time of one direction (dir=bwd: the backward call alone), as the
// median and the 10 % and 90 % quantiles of the samples; useful GFLOP/s (visible pairs only) and
// their share of the fp32 multiply-add rate that this machine reaches in registers, measured in the
// same run; on a GPU, of the matrix rate on its data sheet. With --threads 1 the clock is the
// thread's CPU time, which neighbours do not disturb.
// The backend `standard` also shows its passes over the matrix, so that its products can be
// compared with the tiled kernel's.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "case/case_tensors.h"
#include "cli/measure.h"
#include "cli/verbs.h"
#include "cpu/machine.h"
#include "cpu/pass_times.h"
#include "device.h"
#include "tilewise/cost.hpp"

namespace tilewise::cli {

namespace {

struct Pass {
  std::string name;
  double seconds = 0;
  double gflops = 0;  // of the products over the whole matrix, masked or not; 0: no product
};

struct Measurement {
  std::string text;  // the Case
  std::string backend;
  std::string device;  // "": host memory
  Timing timing;
  double gflops = 0;
  double share = 0;
  int64_t workspace_bytes = 0;
  std::vector<Pass> passes;  // of `standard`
};

// Columns that the products of a pass sum over or produce, for each pair of the matrix.
int64_t product_columns(const std::string& pass, const Case& c) {
  const bool backward = c.dir == Direction::backward;
  if (pass == "scores") return backward ? c.d + c.dv : c.d;
  if (pass == "out") return c.dv;
  if (pass == "d_q") return c.d;
  return pass == "d_kv" ? c.d + c.dv : 0;
}

std::vector<Pass> passes_of(const Case& c, const cpu::PassWatch& watch) {
  std::vector<Pass> passes;
  for (const cpu::PassTime& time : watch.times()) {
    Pass pass{time.pass, time.seconds / time.calls, 0};
    const double flops = 2.0 * static_cast<double>(c.b * c.hq * c.q) *
                         static_cast<double>(c.kv * product_columns(pass.name, c));
    pass.gflops = flops / pass.seconds * 1e-9;
    passes.push_back(pass);
  }
  return passes;
}

std::string text_of(const Measurement& m) {
  std::string text = "passes of " + m.text + ":";
  for (const Pass& pass : m.passes) {
    text += fmt::format("{} {} {}", &pass == &m.passes.front() ? "" : ",", pass.name,
                        seconds_text(pass.seconds));
    if (pass.gflops > 0) text += fmt::format(" ({:.1f} GFLOP/s)", pass.gflops);
  }
  return text;
}

double wall_seconds() { return seconds_now(Clock::wall); }
double cpu_seconds() { return seconds_now(Clock::thread_cpu); }

Measurement measure(const Case& c, const BenchOptions& options, Clock clock) {
  const CaseTensors tensors(c, Poison::off);
  Options call_options = tensors.options();
  call_options.backend = options.backend;
  const bool backward = c.dir == Direction::backward;
  const PreparedCall forward(Direction::forward, tensors.forward(), call_options);
  if (backward) forward.run();  // backward reads its out and lse
  const Tensors& measured = backward ? tensors.backward() : tensors.forward();
  const PreparedCall call(c.dir, measured, call_options);
  const cpu::PassWatch watch(clock == Clock::wall ? wall_seconds : cpu_seconds);
  Measurement result;
  result.text = print_case(c);
  result.backend = call.plan().backend();
  result.timing = call.time(options.repetitions, clock);
  result.device = call.on_device() ? device_name(call.plan().problem().device.id) : "";
  result.gflops = useful_flops(call.plan().problem(), measured) / result.timing.median_s * 1e-9;
  result.workspace_bytes = static_cast<int64_t>(call.plan().workspace_bytes());
  result.passes = passes_of(c, watch);
  return result;
}

// Of the preset whose name the device's name holds; 0 = none.
double device_peak_flops(const std::string& device, DType dtype) {
  for (const std::string& preset : machine_presets()) {
    std::string name = preset;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    if (device.find(name) != std::string::npos) return machine_preset(preset, dtype).flops_per_s;
  }
  return 0;
}

// Measured beside a case; 0: unknown, or none.
struct Peaks {
  double gflops = 0;         // of multiply-adds; on a device, by its data sheet
  double matrix_gflops = 0;  // of bf16 products, where they have their own
};

// Before each case: the clock rate of a shared machine moves.
Peaks measure_peaks(const Case& c) {
  Peaks peaks;
  peaks.gflops = cpu::measure_fma_peak(num_threads()) * 1e-9;
  if (c.dtype == DType::bf16) peaks.matrix_gflops = cpu::measure_matrix_peak(num_threads()) * 1e-9;
  return peaks;
}

Row row_of(const Measurement& m, const BenchOptions& options, const Peaks& peaks, Clock clock) {
  Row row;
  row.add("case", m.text).add("backend", m.backend);
  if (m.device.empty()) {
    row.add("threads", int64_t{num_threads()});
    row.add("clock", std::string(clock == Clock::wall ? "wall" : "thread_cpu"));
  } else {
    row.add("device", m.device).add("clock", std::string("device_events"));
  }
  row.add("repetitions", int64_t{options.repetitions});
  row.add("ms", m.timing.median_s * 1e3);
  row.add("ms_p10", m.timing.p10_s * 1e3).add("ms_p90", m.timing.p90_s * 1e3);
  row.add("tflops", m.gflops * 1e-3).add("share_of_peak", m.share);
  row.add("peak_gflops", peaks.gflops);
  if (peaks.matrix_gflops > 0) row.add("matrix_peak_gflops", peaks.matrix_gflops);
  row.add("workspace_bytes", m.workspace_bytes);
  for (const Pass& pass : m.passes) {
    row.add(pass.name + "_ms", pass.seconds * 1e3);
    if (pass.gflops > 0) row.add(pass.name + "_tflops", pass.gflops * 1e-3);
  }
  return row;
}

std::vector<std::string> cells_of(const Measurement& m) {
  return {m.text,
          m.backend,
          seconds_text(m.timing.median_s),
          seconds_text(m.timing.p10_s),
          seconds_text(m.timing.p90_s),
          fmt::format("{:.1f}", m.gflops),
          fmt::format("{:.1f} %", m.share * 100),
          bytes_text(static_cast<double>(m.workspace_bytes))};
}

void print_peak(const Peaks& peaks, const BenchOptions& options, Clock clock) {
  std::string matrix;
  if (peaks.matrix_gflops > 0) {
    matrix = fmt::format(", {:.1f} of bf16 products,", peaks.matrix_gflops);
  }
  fmt::print("peak: {:.1f} GFLOP/s of fp32 multiply-add{} with {} {}; {}, {} samples\n",
             peaks.gflops, matrix, num_threads(), num_threads() == 1 ? "thread" : "threads",
             clock == Clock::wall ? "wall time" : "thread CPU time", options.repetitions);
}

}  // namespace

int bench(const BenchOptions& options) {
  check_backend(options.backend);
  const std::vector<Case> cases = cases_of(options.words);
  check_cases(cases);
  const Clock clock = num_threads() == 1 ? Clock::thread_cpu : Clock::wall;
  Progress progress(options.shared.progress, "cases", static_cast<int64_t>(cases.size()));
  std::vector<Row> rows;
  std::vector<std::string> notes;
  Table table{{"case", "backend", ">median", ">p10", ">p90", ">GFLOP/s", ">of peak", ">workspace"},
              {}};
  Peaks best;
  std::string device;
  for (const Case& c : cases) {
    progress.begin(print_case(c));
    Peaks peaks = measure_peaks(c);
    Measurement m = measure(c, options, clock);
    if (m.device.empty()) {
      best.gflops = std::max(best.gflops, peaks.gflops);
      best.matrix_gflops = std::max(best.matrix_gflops, peaks.matrix_gflops);
    } else {
      peaks = {device_peak_flops(m.device, c.dtype) * 1e-9, 0};
      device = m.device;
    }
    if (peaks.gflops > 0) m.share = m.gflops / peaks.gflops;
    rows.push_back(row_of(m, options, peaks, clock));
    table.rows.push_back(cells_of(m));
    if (!m.passes.empty()) notes.push_back(text_of(m));
  }
  progress.clear();
  if (options.shared.format == Format::json) {
    print_json(options.shared.command, rows);
  } else if (options.shared.format == Format::csv) {
    print_csv(rows);
  } else {
    print_table(table, options.shared.format);
    for (const std::string& note : notes) fmt::print("{}\n", note);
    if (options.shared.format == Format::markdown) fmt::print("\n");
    if (!device.empty()) {
      fmt::print(
          "device: {}, tensors copied there; time between events, {} samples; peak by its "
          "data sheet\n",
          device, options.repetitions);
    }
    if (best.gflops > 0) print_peak(best, options, clock);
  }
  return 0;
}

}  // namespace tilewise::cli
