// Arithmetic of axes and the SVG words; see svg_chart.h.
#include "cli/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cli/html_style.h"

namespace tilewise::cli {

namespace {

constexpr double kWidth = 540;
constexpr double kHeight = 310;
constexpr double kLeft = 84;
constexpr double kRight = 136;
constexpr double kTop = 16;
constexpr double kBottom = 48;
constexpr int kMostTicks = 8;
constexpr double kBarHeight = 18;
constexpr double kBarStep = 26;
constexpr double kBarLeft = 188;
constexpr double kBarRight = 72;
constexpr double kHeading = 52;
constexpr double kMargin = 8;

template <class... Args>
void put(std::string& svg, fmt::format_string<Args...> text, Args&&... args) {
  fmt::format_to(std::back_inserter(svg), text, std::forward<Args>(args)...);
}

// A logarithmic axis: values to pixels.
struct Axis {
  double low = 1;
  double high = 10;
  double begin = 0;  // pixels
  double end = 1;

  double at(double value) const {
    return begin + (end - begin) * std::log(value / low) / std::log(high / low);
  }
};

// Powers of 2, 4, 16, ... or of 10: the closest that are not too many.
std::vector<double> powers(const Axis& axis, double step) {
  const double first = std::ceil(std::log(axis.low) / std::log(step) - 1e-9);
  const double last = std::floor(std::log(axis.high) / std::log(step) + 1e-9);
  const double skip = std::max(1.0, std::ceil((last - first + 1) / kMostTicks));
  std::vector<double> all;
  // Multiples of the skip, so that decades and KiB come out round.
  for (double p = std::ceil(first / skip) * skip; p <= last; p += skip) {
    all.push_back(std::pow(step, p));
  }
  return all;
}

std::vector<double> ticks_of(const Axis& axis, Ticks kind) {
  if (kind == Ticks::binary) return powers(axis, 2);
  std::vector<double> fine;
  for (double ten = std::pow(10, std::floor(std::log10(axis.low))); ten <= axis.high; ten *= 10) {
    for (const double part : {1.0, 2.0, 5.0}) {
      const double tick = part * ten;
      if (tick >= axis.low && tick <= axis.high) fine.push_back(tick);
    }
  }
  return static_cast<int>(fine.size()) <= kMostTicks ? fine : powers(axis, 10);
}

template <class Get>
Axis axis_of(const LogChart& chart, Get get, double begin, double end) {
  double low = HUGE_VAL;
  double high = 0;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (get(point) > 0) low = std::min(low, get(point));
      high = std::max(high, get(point));
    }
  }
  if (!(high > 0)) low = high = 1;
  const double margin = std::max(1.25, std::pow(high / low, 0.06));
  return {low / margin, high * margin, begin, end};
}

void draw_axes(std::string& svg, const LogChart& chart, const Axis& x, const Axis& y) {
  for (const double tick : ticks_of(x, chart.x_ticks)) {
    put(svg, "<line class='grid' x1='{0:.1f}' x2='{0:.1f}' y1='{1:.1f}' y2='{2:.1f}'/>", x.at(tick),
        y.begin, y.end);
    put(svg, "<text class='tick' text-anchor='middle' x='{:.1f}' y='{:.1f}'>{}</text>", x.at(tick),
        y.begin + 17, escaped(chart.x_text(tick)));
  }
  for (const double tick : ticks_of(y, chart.y_ticks)) {
    put(svg, "<line class='grid' x1='{0:.1f}' x2='{1:.1f}' y1='{2:.1f}' y2='{2:.1f}'/>", x.begin,
        x.end, y.at(tick));
    put(svg, "<text class='tick' text-anchor='end' x='{:.1f}' y='{:.1f}'>{}</text>", x.begin - 6,
        y.at(tick) + 4, escaped(chart.y_text(tick)));
  }
  put(svg, "<path class='axis' d='M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}'/>", x.begin, y.end, y.begin,
      x.end);
  put(svg, "<text class='label' text-anchor='middle' x='{:.1f}' y='{:.1f}'>{}</text>",
      (x.begin + x.end) / 2, kHeight - 8, escaped(chart.x_label));
  put(svg,
      "<text class='label' text-anchor='middle' transform='translate(20 {:.1f}) rotate(-90)'>"
      "{}</text>",
      (y.begin + y.end) / 2, escaped(chart.y_label));
}

// Standard attention is a square, everything else a disc: colour is not the only difference.
void draw_mark(std::string& svg, const ChartSeries& series, const ChartPoint& point, double x,
               double y) {
  if (series.style == "standard") {
    put(svg, "<rect class='mark {}' x='{:.1f}' y='{:.1f}' width='9' height='9'>", series.style,
        x - 4.5, y - 4.5);
    put(svg, "<title>{}</title></rect>", escaped(point.title));
  } else {
    put(svg, "<circle class='mark {}' cx='{:.1f}' cy='{:.1f}' r='5'><title>{}</title></circle>",
        series.style, x, y, escaped(point.title));
  }
}

void draw_series(std::string& svg, const ChartSeries& series, const Axis& x, const Axis& y) {
  std::string path;
  for (const ChartPoint& point : series.points) {
    if (point.x <= 0 || point.y <= 0) continue;
    put(path, "{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x.at(point.x), y.at(point.y));
  }
  if (path.empty()) return;
  put(svg, "<path class='line {}' d='{}'/>", series.style, path);
  for (const ChartPoint& point : series.points) {
    if (series.marks && point.x > 0 && point.y > 0) {
      draw_mark(svg, series, point, x.at(point.x), y.at(point.y));
    }
  }
  const ChartPoint& last = series.points.back();
  if (series.label.empty() || last.x <= 0 || last.y <= 0) return;
  put(svg, "<text class='name {}' x='{:.1f}' y='{:.1f}'>{}</text>", series.style, x.at(last.x) + 10,
      y.at(last.y) + 4, escaped(series.label));
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string inline_svg(const Drawing& drawing) {
  return fmt::format("<svg viewBox='0 0 {:.0f} {:.0f}' role='img' aria-label='{}'>{}</svg>\n",
                     drawing.width, drawing.height, escaped(drawing.title), drawing.body);
}

std::string svg_file(const Drawing& drawing, const std::string& heading, const std::string& line) {
  const double height = drawing.height + kHeading + kMargin;
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0:.0f} {1:.0f}' width='{0:.0f}' "
      "height='{1:.0f}' role='img' aria-label='{2}'>\n{3}",
      drawing.width, height, escaped(drawing.title), chart_style());
  put(svg, "<rect class='ground' width='{:.0f}' height='{:.0f}' rx='8'/>\n", drawing.width, height);
  put(svg, "<text class='heading' x='16' y='24'>{}</text>", escaped(heading));
  put(svg, "<text class='tick' x='16' y='42'>{}</text>\n", escaped(line));
  put(svg, "<g transform='translate(0 {:.0f})'>{}</g></svg>\n", kHeading, drawing.body);
  return svg;
}

Drawing draw(const LogChart& chart) {
  const Axis x = axis_of(
      chart, [](const ChartPoint& p) { return p.x; }, kLeft, kWidth - kRight);
  const Axis y = axis_of(
      chart, [](const ChartPoint& p) { return p.y; }, kHeight - kBottom, kTop);
  std::string svg;
  draw_axes(svg, chart, x, y);
  for (const ChartSeries& series : chart.series) draw_series(svg, series, x, y);
  return {chart.title, kWidth, kHeight, svg};
}

Drawing draw(const BarChart& chart) {
  double longest = 0;
  for (const Bar& bar : chart.bars) longest = std::max(longest, bar.first + bar.second);
  const double scale = longest > 0 ? (kWidth - kBarLeft - kBarRight) / longest : 0;
  std::string svg;
  double top = 8;
  for (const Bar& bar : chart.bars) {
    const double first = bar.first * scale;
    const double second = bar.second * scale;
    const double middle = top + kBarHeight / 2 + 4;
    put(svg, "<text class='tick' text-anchor='end' x='{:.1f}' y='{:.1f}'>{}</text>", kBarLeft - 8,
        middle, escaped(bar.label));
    put(svg, "<rect class='bar {}' x='{}' y='{:.1f}' width='{:.1f}' height='{}'/>", bar.style,
        kBarLeft, top, std::max(first, 0.5), kBarHeight);
    put(svg, "<rect class='bar faint {}' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{}'/>",
        bar.style, kBarLeft + first, top, second, kBarHeight);
    put(svg, "<text class='tick' x='{:.1f}' y='{:.1f}'>{}</text>", kBarLeft + first + second + 8,
        middle, escaped(bar.text));
    top += kBarStep;
  }
  put(svg, "<text class='tick' x='{}' y='{:.1f}'>{}</text>", kBarLeft, top + 12,
      escaped(chart.note));
  top += kBarStep;
  return {chart.title, kWidth, top, svg};
}

}  // namespace tilewise::cli
