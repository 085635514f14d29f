// The report of tilewise profile as one HTML file that needs nothing else: roofline, bytes by pass,
// time and memory over the length, and a replay of the tiles.
#pragma once

#include <string>

#include "cli/profile.h"

namespace tilewise::cli {

// Appears whole or not at all. Throws InputError when it cannot be written.
// The page names the command and date of `report`.
void write_html_report(const Profile& profile, const Report& report, const std::string& path);

}  // namespace tilewise::cli
