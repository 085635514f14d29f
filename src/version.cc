// The version, from the one place that states it: project(VERSION) in CMakeLists.txt.
#include "tilewise/version.h"

#include "tilewise/tilewise.hpp"

namespace tilewise {

std::string_view version() { return TILEWISE_VERSION_STRING; }

}  // namespace tilewise
