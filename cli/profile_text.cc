// Tables of a profile, for people and as rows; the sentence below them is advice.cc.
#include <fmt/format.h>

#include "cli/profile.h"

namespace tilewise::cli {

namespace {

constexpr double kBusyNeighbours = 0.3;  // cores

std::string percent(double share) {
  return fmt::format("{:.{}f} %", 100 * share, share < 0.0995 ? 1 : 0);
}

std::string gbps(double bytes_per_s) { return fmt::format("{:.0f}", bytes_per_s * 1e-9); }

Row path_row(const Profile& p, const ProfiledCase& c, const ProfiledPath& path) {
  Row row;
  row.add("case", print_case(c.text)).add("backend", path.backend);
  row.add("threads", int64_t{p.threads});
  if (path.ran()) {
    row.add("ms", path.timing.median_s * 1e3).add("ms_p10", path.timing.p10_s * 1e3);
    row.add("ms_p90", path.timing.p90_s * 1e3);
    row.add("repetitions", int64_t{path.timing.samples}).add("tflops", path.gflops() * 1e-3);
    row.add("share_of_peak", path.gflops() * 1e9 / p.roofs.machine.flops_per_s);
    row.add("share_of_roof", path.roof_share());
  } else {
    row.add("not_run", path.why_not);
  }
  row.add("workspace_bytes", path.workspace_bytes);
  row.add("bound", std::string(name_of(path.model.bound)));
  row.add("model_schedule", std::string(name_of(path.schedule)));
  row.add("model_bytes", path.model.bytes()).add("model_cached_bytes", path.model.cached_bytes);
  row.add("model_intensity", path.model.intensity);
  row.add("model_executed_flops", path.model.executed_flops);
  row.add("model_memory_ms", path.model.memory_s * 1e3);
  row.add("model_compute_ms", path.model.compute_s * 1e3);
  row.add("model_exp_ms", path.model.exp_s * 1e3);
  return row.add("model_ms", path.model.passes_s * 1e3);
}

Row roofs_row(const Profile& p) {
  const MachineRoofs& m = p.roofs.machine;
  Row row;
  row.add("roofs", m.name).add("threads", int64_t{p.threads});
  row.add("flops_per_s", m.flops_per_s).add("exps_per_s", m.exps_per_s);
  row.add("l1_bytes_per_s", p.roofs.l1_bytes_per_s).add("l2_bytes_per_s", p.roofs.l2_bytes_per_s);
  row.add("l3_bytes_per_s", p.roofs.l3_bytes_per_s);
  row.add("read_bytes_per_s", p.roofs.read_bytes_per_s);
  row.add("copy_bytes_per_s", p.roofs.copy_bytes_per_s).add("balance", m.balance());
  row.add("other_processes_cores", p.others_cores);
  return row.add("fast_bytes", m.fast_bytes).add("cache_bytes", m.cache_bytes);
}

}  // namespace

std::vector<Row> profile_rows(const Profile& p) {
  std::vector<Row> rows = {roofs_row(p), path_row(p, p.main, p.main.standard),
                           path_row(p, p.main, p.main.tiled)};
  for (const ProfiledCase& c : p.lengths) {
    if (c.text == p.main.text) continue;
    rows.push_back(path_row(p, c, c.standard));
    rows.push_back(path_row(p, c, c.tiled));
  }
  Row layer;
  layer.add("layer_hidden", p.layer.hidden).add("layer_ffn", p.layer.ffn);
  layer.add("layer_rest_ms", p.layer.rest_s * 1e3);
  if (p.main.standard.ran()) {
    layer.add("standard_share_of_layer", p.layer.share(p.main.standard.timing.median_s));
  }
  layer.add("tiled_share_of_layer", p.layer.share(p.main.tiled.timing.median_s));
  layer.add("verdict", std::string(name_of(p.advice.verdict)));
  rows.push_back(layer.add("advice", p.advice.text));
  return rows;
}

void print_profile(const Profile& p) {
  const MachineRoofs& m = p.roofs.machine;
  fmt::print("{}\non {}, {} thread{}\n\n", print_case(p.main.text), m.name, p.threads,
             p.threads == 1 ? "" : "s");
  fmt::print(
      "roofs   multiply-adds {:.1f} GFLOP/s, exponentials {:.1f} G/s, balance {:.1f} FLOP/byte\n",
      m.flops_per_s * 1e-9, m.exps_per_s * 1e-9, m.balance());
  fmt::print(
      "        GB/s: memory {} read, {} copied; third-level cache {}, second {}, first {}\n\n",
      gbps(p.roofs.read_bytes_per_s), gbps(p.roofs.copy_bytes_per_s),
      p.roofs.l3_bytes_per_s > 0 ? gbps(p.roofs.l3_bytes_per_s) : "-", gbps(p.roofs.l2_bytes_per_s),
      gbps(p.roofs.l1_bytes_per_s));
  Table table{{"", "backend", ">time", ">p10", ">p90", ">GFLOP/s", ">of peak", ">extra memory"},
              {}};
  Table model{{"by the model", ">traffic", ">FLOP/byte", ">memory", ">compute", ">exp", "bound by",
               ">of that roof"},
              {}};
  for (const ProfiledPath* const path : {&p.main.standard, &p.main.tiled}) {
    const Timing& t = path->timing;
    const bool ran = path->ran();
    table.rows.push_back({path->name, path->backend, ran ? seconds_text(t.median_s) : "not run",
                          ran ? seconds_text(t.p10_s) : "", ran ? seconds_text(t.p90_s) : "",
                          ran ? fmt::format("{:.1f}", path->gflops()) : "",
                          ran ? percent(path->gflops() * 1e9 / m.flops_per_s) : "",
                          bytes_text(static_cast<double>(path->workspace_bytes))});
    const Cost& c = path->model;
    model.rows.push_back({std::string(name_of(path->schedule)), decimal_bytes_text(c.bytes()),
                          fmt::format("{:.1f}", c.intensity), seconds_text(c.memory_s),
                          seconds_text(c.compute_s), seconds_text(c.exp_s),
                          std::string(name_of(c.bound)), ran ? percent(path->roof_share()) : ""});
  }
  print_table(table, Format::text);
  fmt::print("\n");
  print_table(model, Format::text);
  fmt::print("\nlayer   everything but attention about {} (hidden {}, ffn {})",
             seconds_text(p.layer.rest_s), p.layer.hidden, p.layer.ffn);
  if (p.main.standard.ran()) {
    fmt::print(": attention is {} of a layer, with Tilewise {}",
               percent(p.layer.share(p.main.standard.timing.median_s)),
               percent(p.layer.share(p.main.tiled.timing.median_s)));
  }
  fmt::print("\n\n{}\n", p.advice.text);
  if (p.others_cores > kBusyNeighbours) {
    fmt::print("Other processes kept {:.1f} cores busy meanwhile{}.\n", p.others_cores,
               p.threads == 1 ? "; times are CPU time of the thread"
                              : ": times are too long. --threads 1 counts CPU time instead");
  }
}

}  // namespace tilewise::cli
