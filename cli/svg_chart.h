// Charts as SVG text: lines on two logarithmic axes, and horizontal bars. Colours and fonts come by
// class from a style sheet, the page's or the file's own, so that one drawing reads well in light,
// dark and print.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tilewise::cli {

// Without the <svg> around it.
struct Drawing {
  std::string title;  // for readers that do not see it
  double width = 0;
  double height = 0;
  std::string body;
};
// Inside a page that has the style sheet.
std::string inline_svg(const Drawing& drawing);
// A whole file: a heading, a line below it, the drawing, and the style sheet inside.
std::string svg_file(const Drawing& drawing, const std::string& heading, const std::string& line);

// & < > " as entities.
std::string escaped(const std::string& text);

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::string title;  // what a pointer over it shows
};

struct ChartSeries {
  std::string style;  // class: "standard", "tiled", "roof"
  std::string label;  // beside the last point; "": none
  std::vector<ChartPoint> points;
  bool marks = true;  // a mark at every point
};

using AxisText = std::function<std::string(double)>;
enum class Ticks { decimal, binary };  // at 1, 2, 5, 10, ...; at powers of two

struct LogChart {
  std::string title;  // for readers that do not see it
  std::string x_label;
  std::string y_label;
  AxisText x_text;
  AxisText y_text;
  Ticks x_ticks = Ticks::decimal;
  Ticks y_ticks = Ticks::decimal;
  std::vector<ChartSeries> series;
};
Drawing draw(const LogChart& chart);

struct Bar {
  std::string label;
  std::string style;
  double first = 0;   // solid part
  double second = 0;  // lighter part behind it
  std::string text;   // after the bar
};
struct BarChart {
  std::string title;
  std::vector<Bar> bars;  // a bar without a label or length leaves a gap
  std::string note;       // below the bars
};
Drawing draw(const BarChart& chart);

}  // namespace tilewise::cli
