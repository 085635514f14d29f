// The pictures of a profile: roofline, bytes by pass, time and memory over the length. The report
// shows them, --svg writes each as a file.
#pragma once

#include <string>
#include <vector>

#include "cli/profile.h"
#include "cli/svg_chart.h"

namespace tilewise::cli {

struct Picture {
  std::string name;  // of the file, without .svg
  std::string heading;
  Drawing drawing;
  std::string caption;
};
std::vector<Picture> pictures_of(const Profile& profile);

// Writes FOLDER/NAME.svg for each picture. Throws InputError when one cannot be written.
void write_pictures(const Profile& profile, const std::string& folder);

}  // namespace tilewise::cli
