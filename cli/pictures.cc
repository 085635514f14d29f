// What is drawn on which axes; svg_chart.cc knows how.
#include "cli/pictures.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/atomic_file.h"
#include "cli/svg_chart.h"

namespace tilewise::cli {

namespace {

std::string plain(double value) { return fmt::format("{:.4g}", value); }
std::string seconds_axis(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.3g} ms", seconds * 1e3)
                         : fmt::format("{:.3g} us", seconds * 1e6);
}

std::string rate_axis(double flops_per_s) {
  return flops_per_s >= 1e12 ? fmt::format("{:.4g} T", flops_per_s * 1e-12)
                             : fmt::format("{:.4g} G", flops_per_s * 1e-9);
}

std::string bytes_axis(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return fmt::format("{:.3g} {}", bytes, units[unit]);
}

ChartSeries point_of(const ProfiledPath& path, const std::string& style) {
  ChartSeries series{style, path.name, {}, true};
  if (!path.ran()) return series;
  const double rate = path.model.executed_flops / path.timing.median_s;
  series.points.push_back({path.model.intensity, rate,
                           fmt::format("{}: {:.1f} FLOP/byte, {}FLOP/s", path.name,
                                       path.model.intensity, rate_axis(rate))});
  return series;
}

Picture roofline(const Profile& p) {
  const MachineRoofs& m = p.roofs.machine;
  const double balance = m.balance();
  double low = balance / 16;
  double high = balance * 16;
  for (const ProfiledPath* const path : {&p.main.standard, &p.main.tiled}) {
    if (path->model.intensity > 0) low = std::min(low, path->model.intensity / 2);
    high = std::max(high, path->model.intensity * 2);
  }
  ChartSeries roof{"roof", rate_axis(m.flops_per_s) + "FLOP/s", {}, false};
  roof.points = {
      {low, low * m.bytes_per_s, ""}, {balance, m.flops_per_s, ""}, {high, m.flops_per_s, ""}};
  LogChart chart{"Roofline with the measured points",
                 "operations a byte of slow memory (by the model)",
                 "operations a second",
                 plain,
                 rate_axis,
                 Ticks::decimal,
                 Ticks::decimal,
                 {roof, point_of(p.main.standard, "standard"), point_of(p.main.tiled, "tiled")}};
  return {"roofline", "Roofline", draw(chart),
          fmt::format("Left of {:.1f} FLOP/byte memory ({:.1f} GB/s) is the limit, right of it "
                      "multiply-adds ({}FLOP/s). Measured roofs.",
                      balance, m.bytes_per_s * 1e-9, rate_axis(m.flops_per_s))};
}

void add_bars(const ProfiledPath& path, const std::string& style, BarChart& chart) {
  std::vector<Bar> bars;
  for (const Traffic& item : path.model.traffic) {
    const std::string label = path.name + ", " + item.pass;
    if (bars.empty() || bars.back().label != label) bars.push_back({label, style, 0, 0, ""});
    bars.back().first += item.read_bytes;
    bars.back().second += item.write_bytes;
  }
  for (Bar& bar : bars) {
    bar.text = decimal_bytes_text(bar.first + bar.second);
    chart.bars.push_back(bar);
  }
}

Picture bytes_by_pass(const Profile& p) {
  BarChart chart{"Bytes of slow memory by pass", {}, "solid: read, faint: written; by the model"};
  add_bars(p.main.standard, "standard", chart);
  add_bars(p.main.tiled, "tiled", chart);
  const double standard = p.main.standard.model.bytes();
  const double tiled = p.main.tiled.model.bytes();
  const double times = tiled > 0 ? standard / tiled : 1;
  return {"bytes", "Bytes by pass", draw(chart),
          fmt::format("{} against {}{}. What the cache serves does not count.",
                      decimal_bytes_text(standard), decimal_bytes_text(tiled),
                      times >= 1.05 ? fmt::format(", {:.1f} times less", times) : "")};
}

using Quantity = double (*)(const ProfiledPath&);

ChartSeries over_length(const Profile& p, ProfiledPath ProfiledCase::*which,
                        const std::string& style, Quantity quantity, const AxisText& text) {
  ChartSeries series{style, (p.main.*which).name, {}, true};
  for (const ProfiledCase& c : p.lengths) {
    const ProfiledPath& path = c.*which;
    const double value = quantity(path);
    if (value <= 0) continue;
    const auto length = static_cast<double>(c.text.kv);
    series.points.push_back(
        {length, value, fmt::format("{} at {}: {}", path.name, c.text.kv, text(value))});
  }
  return series;
}

Drawing length_chart(const Profile& p, const std::string& y_label, Quantity quantity,
                     const AxisText& text, Ticks ticks) {
  return draw(LogChart{y_label + " over the length",
                       "keys",
                       y_label,
                       [](double keys) { return fmt::format("{:.0f}", keys); },
                       text,
                       Ticks::binary,
                       ticks,
                       {over_length(p, &ProfiledCase::standard, "standard", quantity, text),
                        over_length(p, &ProfiledCase::tiled, "tiled", quantity, text)}});
}

Picture time_chart(const Profile& p) {
  const auto seconds = [](const ProfiledPath& path) { return path.timing.median_s; };
  return {"time", "Time over the length",
          length_chart(p, "median time", seconds, seconds_axis, Ticks::decimal),
          "Measured, both by turns on the same tensors. Both grow with the square of the length: "
          "tiling does not change the number of pairs."};
}

Picture memory_chart(const Profile& p) {
  const auto bytes = [](const ProfiledPath& path) {
    return static_cast<double>(path.workspace_bytes);
  };
  return {"memory", "Memory over the length",
          length_chart(p, "extra memory", bytes, bytes_axis, Ticks::binary),
          "Besides inputs and outputs, also of what was too large to run."};
}

}  // namespace

std::vector<Picture> pictures_of(const Profile& p) {
  return {roofline(p), bytes_by_pass(p), time_chart(p), memory_chart(p)};
}

void write_pictures(const Profile& p, const std::string& folder) {
  const std::string line = print_case(p.main.text) + " on " + p.roofs.machine.name;
  for (const Picture& picture : pictures_of(p)) {
    AtomicFile file(folder + "/" + picture.name + ".svg");
    file.write(svg_file(picture.drawing, picture.heading, line));
    file.commit();
  }
}

}  // namespace tilewise::cli
