// The rules. A chart uses the classes of kChart alone, on a page or as a file.
#include "cli/html_style.h"

#include <string_view>

namespace tilewise::cli {

namespace {

constexpr std::string_view kColours = R"css(
:root { color-scheme: light dark; --ground: #fff; --card: #f5f6f8; --ink: #1b1f24; --soft: #59636e;
  --line: #d5d9de; --standard: #b4430b; --tiled: #1550c4; --roof: #1b1f24; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --card: #1e2328; --ink: #e8eaed;
  --soft: #a3acb6; --line: #3a4149; --standard: #ff9d5c; --tiled: #7fb0ff; --roof: #e8eaed; } }
@media print { :root { color-scheme: light; --ground: #fff; --card: #fff; --ink: #000;
  --soft: #444; --line: #ccc; --standard: #b4430b; --tiled: #1550c4; --roof: #000; } }
)css";

constexpr std::string_view kChart = R"css(
svg text { fill: var(--ink); font-size: 13px; }
.tick { font-size: 12px; fill: var(--soft); } .label { font-size: 13px; }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); fill: none; }
.line { fill: none; stroke-width: 2.5; }
.line.standard { stroke: var(--standard); stroke-dasharray: 7 4; }
.line.tiled { stroke: var(--tiled); }
.line.roof { stroke: var(--roof); stroke-width: 2; }
.mark.standard, .bar.standard { fill: var(--standard); }
.mark.tiled, .bar.tiled { fill: var(--tiled); }
.bar.faint { opacity: .5; }
svg .name { font-weight: 600; } svg .name.standard { fill: var(--standard); }
svg .name.tiled { fill: var(--tiled); }
)css";

// A file has no page around it that chooses the font.
constexpr std::string_view kFile = R"css(
text { font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
.ground { fill: var(--card); stroke: var(--line); }
svg .heading { font-size: 16px; font-weight: 600; }
)css";

constexpr std::string_view kPage = R"css(
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.5rem; margin: 0 0 4px; }
h2 { font-size: 1.15rem; margin: 0 0 8px; }
h3 { font-size: .95rem; margin: 0 0 4px; }
h3.standard { color: var(--standard); } h3.tiled { color: var(--tiled); }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.soft { color: var(--soft); font-size: .9rem; margin: 0 0 12px; }
.advice { font-size: 1.1rem; border-left: 4px solid var(--tiled); padding: 10px 16px;
  background: var(--card); margin: 16px 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr));
  gap: 16px; }
.card, figure { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  margin: 0; padding: 14px 16px; }
.card { margin-top: 16px; overflow-x: auto; }
figcaption { color: var(--soft); font-size: .9rem; }
svg { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.stages { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(380px, 100%), 1fr));
  gap: 16px; margin-top: 10px; }
.replay:focus-visible, button:focus-visible {
  outline: 3px solid var(--tiled); outline-offset: 3px; }
button { font: inherit; padding: 6px 14px; border: 1px solid var(--line); border-radius: 6px;
  background: var(--ground); color: var(--ink); cursor: pointer; }
.count { color: var(--soft); margin-left: 10px; }
.cell { stroke: var(--line); fill: var(--ground); }
#replay-standard .cell.stored { fill: var(--standard); opacity: .45; }
#replay-standard .cell.active { fill: var(--standard); }
#replay-tiled .cell.seen { fill: var(--tiled); opacity: .16; }
#replay-tiled .cell.active { fill: var(--tiled); }
svg .cell-text { text-anchor: middle; font-size: 12px; }
#replay svg .cell-text.active { fill: var(--ground); }
#replay .cell-text.stored, #replay .cell-text.seen { fill: var(--ink); opacity: 1; }
svg .zone { font-size: 13px; }
@page { margin: 12mm; }
@media print { main { padding: 0; } body { font-size: 12px; } .controls button { display: none; }
  .charts, .stages { grid-template-columns: 1fr 1fr; gap: 10px; }
  figure, .card, table { break-inside: avoid; } .card { overflow: visible; }
  table { font-size: .8rem; } th, td { padding-right: 8px; } }
)css";

std::string sheet(std::string_view first, std::string_view second, std::string_view third) {
  std::string text = "<style>";
  for (const std::string_view part : {first, second, third}) text += part.substr(1);
  return text + "</style>\n";
}

}  // namespace

std::string report_style() { return sheet(kColours, kChart, kPage); }
std::string chart_style() { return sheet(kColours, kChart, kFile); }

}  // namespace tilewise::cli