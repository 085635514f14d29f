// Tables of a profile for people; the words below them are advice.cc.
#include <fmt/format.h>

#include "cli/profile.h"

namespace tilewise::cli {

namespace {

constexpr double kBusyNeighbours = 0.3;  // cores

std::string percent(double share) {
  return fmt::format("{:.{}f} %", 100 * share, share < 0.0995 ? 1 : 0);
}

std::string gbps(double bytes_per_s) { return fmt::format("{:.0f}", bytes_per_s * 1e-9); }

}  // namespace

std::string machine_text(const Profile& p) {
  if (p.on_device()) return p.roofs.machine.name;
  return fmt::format("{}, {} thread{}", p.roofs.machine.name, p.threads, p.threads == 1 ? "" : "s");
}

void print_profile(const Profile& p) {
  const MachineRoofs& m = p.roofs.machine;
  fmt::print("{}\non {}\n\n", print_case(p.main.text), machine_text(p));
  fmt::print(
      "roofs   multiply-adds {:.1f} GFLOP/s, exponentials {:.1f} G/s, balance {:.1f} FLOP/byte\n",
      m.flops_per_s * 1e-9, m.exps_per_s * 1e-9, m.balance());
  fmt::print("        GB/s: memory {} read, {} copied", gbps(p.roofs.read_bytes_per_s),
             gbps(p.roofs.copy_bytes_per_s));
  if (!p.on_device()) {
    fmt::print("; third-level cache {}, second {}, first {}",
               p.roofs.l3_bytes_per_s > 0 ? gbps(p.roofs.l3_bytes_per_s) : "-",
               gbps(p.roofs.l2_bytes_per_s), gbps(p.roofs.l1_bytes_per_s));
  }
  fmt::print("\n\n");
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
