// Style sheets: of the report, and of a chart that is a file of its own. Light, dark and print from
// one set of colours.
#pragma once

#include <string>

namespace tilewise::cli {

std::string report_style();  // <style>...</style>
std::string chart_style();

}  // namespace tilewise::cli
