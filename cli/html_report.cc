// Assembles the page. Every number in its table carries the key and the value that --json prints,
// so that a test can hold one against the other.
#include "cli/html_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/atomic_file.h"
#include "cli/html_replay.h"
#include "cli/html_style.h"
#include "cli/machine.h"
#include "cli/svg_chart.h"

namespace tilewise::cli {

namespace {

std::string plain(double value) { return fmt::format("{:.4g}", value); }
std::string seconds_axis(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.3g} ms", seconds * 1e3)
                         : fmt::format("{:.3g} us", seconds * 1e6);
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
  const double gflops = path.model.executed_flops / path.timing.median_s * 1e-9;
  series.points.push_back({path.model.intensity, gflops,
                           fmt::format("{}: {:.1f} FLOP/byte, {:.1f} GFLOP/s", path.name,
                                       path.model.intensity, gflops)});
  return series;
}

std::string roofline(const Profile& p) {
  const MachineRoofs& m = p.roofs.machine;
  const double balance = m.balance();
  double low = balance / 16;
  double high = balance * 16;
  for (const ProfiledPath* const path : {&p.main.standard, &p.main.tiled}) {
    if (path->model.intensity > 0) low = std::min(low, path->model.intensity / 2);
    high = std::max(high, path->model.intensity * 2);
  }
  ChartSeries roof{"roof", "", {}, false};
  roof.points = {{low, low * m.bytes_per_s * 1e-9, ""},
                 {balance, m.flops_per_s * 1e-9, ""},
                 {high, m.flops_per_s * 1e-9, ""}};
  LogChart chart{"Roofline with the measured points",
                 "operations a byte of slow memory (by the model)",
                 "GFLOP/s",
                 plain,
                 plain,
                 Ticks::decimal,
                 Ticks::decimal,
                 {roof, point_of(p.main.standard, "standard"), point_of(p.main.tiled, "tiled")}};
  return fmt::format(
      "<figure><h2>Roofline</h2>{}<figcaption>Left of {:.1f} FLOP/byte memory ({:.1f} GB/s) is the "
      "limit, right of it multiply-adds ({:.1f} GFLOP/s). Measured roofs.</figcaption></figure>",
      draw(chart), balance, m.bytes_per_s * 1e-9, m.flops_per_s * 1e-9);
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

std::string bytes_by_pass(const Profile& p) {
  BarChart chart{"Bytes of slow memory by pass", {}};
  add_bars(p.main.standard, "standard", chart);
  add_bars(p.main.tiled, "tiled", chart);
  const double standard = p.main.standard.model.bytes();
  const double tiled = p.main.tiled.model.bytes();
  const double times = tiled > 0 ? standard / tiled : 1;
  return fmt::format(
      "<figure><h2>Bytes by pass</h2>{}<figcaption>Read (solid) and written (faint), by the model: "
      "{} "
      "against {}{}. What the cache serves does not count.</figcaption></figure>",
      draw(chart), decimal_bytes_text(standard), decimal_bytes_text(tiled),
      times >= 1.05 ? fmt::format(", {:.1f} times less", times) : "");
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

std::string length_chart(const Profile& p, const std::string& heading, const std::string& y_label,
                         Quantity quantity, const AxisText& text, Ticks ticks) {
  LogChart chart{heading + " over the length",
                 "keys",
                 y_label,
                 [](double keys) { return fmt::format("{:.0f}", keys); },
                 text,
                 Ticks::binary,
                 ticks,
                 {over_length(p, &ProfiledCase::standard, "standard", quantity, text),
                  over_length(p, &ProfiledCase::tiled, "tiled", quantity, text)}};
  return fmt::format("<figure><h2>{} over the length</h2>{}", heading, draw(chart));
}

std::string time_chart(const Profile& p) {
  const auto seconds = [](const ProfiledPath& path) { return path.timing.median_s; };
  return length_chart(p, "Time", "median time", seconds, seconds_axis, Ticks::decimal) +
         "<figcaption>Measured, both by turns on the same tensors. Both grow with the square of "
         "the "
         "length: tiling does not change the number of pairs.</figcaption></figure>";
}

std::string memory_chart(const Profile& p) {
  const auto bytes = [](const ProfiledPath& path) {
    return static_cast<double>(path.workspace_bytes);
  };
  return length_chart(p, "Memory", "extra memory", bytes, bytes_axis, Ticks::binary) +
         "<figcaption>Besides inputs and outputs, also of what was too large to run.</figcaption>"
         "</figure>";
}

// A cell whose number is the one of --json: whole, or with six digits.
std::string number_cell(const char* key, const Value& value, const std::string& text) {
  const auto* const whole = std::get_if<int64_t>(&value);
  const std::string number =
      whole != nullptr ? fmt::format("{}", *whole) : fmt::format("{:.6g}", std::get<double>(value));
  return fmt::format("<td data-key='{}' data-value='{}'>{}</td>", key, number, escaped(text));
}

std::string table_row(const Profile& p, const ProfiledCase& c, const ProfiledPath& path) {
  std::string row =
      fmt::format("<tr data-case='{}' data-backend='{}'><td>{}, {}</td>",
                  escaped(print_case(c.text)), escaped(path.backend), escaped(path.name),
                  c.text.packed() ? "" : fmt::format("{}", c.text.kv));
  if (path.ran()) {
    row += number_cell("ms", path.timing.median_s * 1e3, seconds_text(path.timing.median_s));
    row += number_cell("tflops", path.gflops() * 1e-3, fmt::format("{:.1f}", path.gflops()));
    const double share = path.gflops() * 1e9 / p.roofs.machine.flops_per_s;
    row += number_cell("share_of_peak", share, fmt::format("{:.1f} %", 100 * share));
  } else {
    row += "<td>not run</td><td></td><td></td>";
  }
  row += number_cell("workspace_bytes", path.workspace_bytes,
                     bytes_text(static_cast<double>(path.workspace_bytes)));
  row += number_cell("model_bytes", path.model.bytes(), decimal_bytes_text(path.model.bytes()));
  row += number_cell("model_intensity", path.model.intensity,
                     fmt::format("{:.1f}", path.model.intensity));
  return row + fmt::format("<td>{}</td></tr>\n", name_of(path.model.bound));
}

std::string numbers(const Profile& p) {
  std::string rows;
  for (const ProfiledCase& c : p.lengths) {
    rows += table_row(p, c, c.standard) + table_row(p, c, c.tiled);
  }
  return fmt::format(
      "<section class='card'><h2>Numbers</h2><table><thead><tr><th>path, keys</th><th>time</th>"
      "<th>GFLOP/s</th><th>of peak</th><th>extra memory</th><th>traffic</th><th>FLOP/byte</th>"
      "<th>bound by</th></tr></thead><tbody>\n{}</tbody></table></section>\n",
      rows);
}

std::string heading(const Profile& p, const std::string& command) {
  const MachineRoofs& m = p.roofs.machine;
  std::string text = fmt::format(
      "<h1>{}</h1>\n<p class='soft'>on {}, {} thread{}, {}<br><code>{}"
      "</code></p>\n",
      escaped(print_case(p.main.text)), escaped(m.name), p.threads, p.threads == 1 ? "" : "s",
      utc_date(), escaped(command));
  text += fmt::format("<p class='advice'>{}</p>\n", escaped(p.advice.text));
  if (p.others_cores > 0.3) {
    text += fmt::format("<p class='soft'>Other processes kept {:.1f} cores busy meanwhile.</p>\n",
                        p.others_cores);
  }
  return text;
}

}  // namespace

void write_html_report(const Profile& profile, const std::string& command,
                       const std::string& path) {
  std::string page =
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
      "<meta name='viewport' content='width=device-width, initial-scale=1'>"
      "<link rel='icon' href='data:,'><title>tilewise profile</title>\n";
  page += kReportStyle;
  page += "</head><body><main>\n" + heading(profile, command);
  page += "<div class='charts'>\n" + roofline(profile) + bytes_by_pass(profile) +
          time_chart(profile) + memory_chart(profile) + "</div>\n";
  page +=
      "<section class='card'><h2>What tiling does</h2>"
      "<p class='soft'>A toy of 4 rows and 8 keys. Arrow keys step, space plays.</p>";
  page += replay_html();
  page += "</section>\n" + numbers(profile);
  page +=
      "<p class='soft'>GFLOP/s counts visible pairs only. Traffic and FLOP/byte are the IO "
      "model's; docs/io-model.md in the source tree says how they are counted.</p>\n</main>\n";
  page += replay_script();
  page += "</body></html>\n";
  AtomicFile file(path);
  file.write(page);
  file.commit();
}

}  // namespace tilewise::cli
