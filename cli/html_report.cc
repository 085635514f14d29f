// Assembles the page. Every number in its table carries the key and the value that --json prints,
// so that a test can hold one against the other.
#include "cli/html_report.h"

#include <fmt/format.h>

#include "cli/atomic_file.h"
#include "cli/html_replay.h"
#include "cli/html_style.h"
#include "cli/pictures.h"
#include "cli/svg_chart.h"

namespace tilewise::cli {

namespace {

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

std::string figure(const Picture& picture) {
  return fmt::format("<figure><h2>{}</h2>{}<figcaption>{}</figcaption></figure>\n",
                     escaped(picture.heading), inline_svg(picture.drawing),
                     escaped(picture.caption));
}

std::string heading(const Profile& p, const Report& report) {
  std::string text = fmt::format("<h1>{}</h1>\n<p class='soft'>on {}, {}<br><code>{}</code></p>\n",
                                 escaped(print_case(p.main.text)), escaped(machine_text(p)),
                                 report.date, escaped(report.command));
  text += fmt::format("<p class='advice'>{}</p>\n", escaped(p.advice.text));
  if (p.others_cores > 0.3) {
    text += fmt::format("<p class='soft'>Other processes kept {:.1f} cores busy meanwhile.</p>\n",
                        p.others_cores);
  }
  return text;
}

}  // namespace

void write_html_report(const Profile& profile, const Report& report, const std::string& path) {
  std::string page =
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
      "<meta name='viewport' content='width=device-width, initial-scale=1'>"
      "<link rel='icon' href='data:,'><title>tilewise profile</title>\n";
  page += report_style();
  page += "</head><body><main>\n" + heading(profile, report);
  page += "<div class='charts'>\n";
  for (const Picture& picture : pictures_of(profile)) page += figure(picture);
  page += "</div>\n";
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
