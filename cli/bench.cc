// tilewise bench CASE...: the time of one direction (dir=bwd: the backward call alone), as the
// median and the 10 % and 90 % quantiles of the samples; useful GFLOP/s (visible pairs only) and
// their share of the fp32 multiply-add rate that this machine reaches in registers, measured in the
// same run. With --threads 1 the clock is the thread's CPU time, which neighbours do not disturb.
#include <fmt/format.h>

#include "case/case_tensors.h"
#include "cli/measure.h"
#include "cli/verbs.h"
#include "cpu/machine.h"

namespace tilewise::cli {

namespace {

struct Measurement {
  std::string text;  // the Case
  std::string backend;
  Timing timing;
  double gflops = 0;
  double share = 0;
  int64_t workspace_bytes = 0;
};

Measurement measure(const Case& c, const BenchOptions& options, Clock clock) {
  const CaseTensors tensors(c, Poison::off);
  Options call_options = tensors.options();
  call_options.backend = options.backend;
  const bool backward = c.dir == Direction::backward;
  const PreparedCall forward(Direction::forward, tensors.forward(), call_options);
  if (backward) forward.run();  // backward reads its out and lse
  const Tensors& measured = backward ? tensors.backward() : tensors.forward();
  const PreparedCall call(c.dir, measured, call_options);
  Measurement result;
  result.text = print_case(c);
  result.backend = call.plan().backend();
  result.timing = time_calls([&] { call.run(); }, options.repetitions, clock);
  result.gflops = useful_flops(call.plan().problem(), measured) / result.timing.median_s * 1e-9;
  result.workspace_bytes = static_cast<int64_t>(call.plan().workspace_bytes());
  return result;
}

Row row_of(const Measurement& m, const BenchOptions& options, double peak_gflops, Clock clock) {
  Row row;
  row.add("case", m.text).add("backend", m.backend);
  row.add("threads", int64_t{num_threads()});
  row.add("clock", std::string(clock == Clock::wall ? "wall" : "thread_cpu"));
  row.add("repetitions", int64_t{options.repetitions});
  row.add("ms", m.timing.median_s * 1e3);
  row.add("ms_p10", m.timing.p10_s * 1e3).add("ms_p90", m.timing.p90_s * 1e3);
  row.add("tflops", m.gflops * 1e-3).add("share_of_peak", m.share);
  row.add("peak_gflops", peak_gflops).add("workspace_bytes", m.workspace_bytes);
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

}  // namespace

int bench(const BenchOptions& options) {
  check_backend(options.backend);
  const std::vector<Case> cases = cases_of(options.words);
  check_cases(cases);
  const Clock clock = num_threads() == 1 ? Clock::thread_cpu : Clock::wall;
  Progress progress(options.shared.progress, "cases", static_cast<int64_t>(cases.size()));
  std::vector<Row> rows;
  Table table{{"case", "backend", ">median", ">p10", ">p90", ">GFLOP/s", ">of peak", ">workspace"},
              {}};
  double best_peak = 0;
  for (const Case& c : cases) {
    progress.begin(print_case(c));
    // Before each case: the clock rate of a shared machine moves.
    const double peak_gflops = cpu::measure_fma_peak(num_threads()) * 1e-9;
    best_peak = std::max(best_peak, peak_gflops);
    Measurement m = measure(c, options, clock);
    if (peak_gflops > 0) m.share = m.gflops / peak_gflops;
    rows.push_back(row_of(m, options, peak_gflops, clock));
    table.rows.push_back(cells_of(m));
  }
  progress.clear();
  if (options.shared.format == Format::json) {
    print_json(options.shared.command, rows);
  } else if (options.shared.format == Format::csv) {
    print_csv(rows);
  } else {
    print_table(table, options.shared.format);
    fmt::print("{}peak: {:.1f} GFLOP/s of fp32 multiply-add with {} {}; {}, {} samples\n",
               options.shared.format == Format::markdown ? "\n" : "", best_peak, num_threads(),
               num_threads() == 1 ? "thread" : "threads",
               clock == Clock::wall ? "wall time" : "thread CPU time", options.repetitions);
  }
  return 0;
}

}  // namespace tilewise::cli
