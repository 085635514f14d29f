// Any text as a Case: an Error that names what was wrong, or a Case that survives printing.
#include <cstdlib>
#include <string_view>

#include "case/case.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const tilewise::Case parsed = tilewise::parse_case(text);
    const std::string printed = tilewise::print_case(parsed);
    if (!(tilewise::parse_case(printed) == parsed)) std::abort();
    if (tilewise::print_case(tilewise::parse_case(printed)) != printed) std::abort();
  } catch (const tilewise::Error& error) {
    const bool known = error.status() == tilewise::Status::invalid_argument ||
                       error.status() == tilewise::Status::unsupported;  // a key of later versions
    if (!known) std::abort();
    if (std::string_view(error.what()).empty()) std::abort();
  }
  return 0;
}
