// The machine and the build, as result files and `doctor` name them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace tilewise::cli {

struct Machine {
  std::string cpu;                        // the model's name
  int64_t cores = 0;                      // those this process may use
  std::string isa;                        // the instruction set that runs
  std::vector<std::string> isas;          // those that could, best first
  std::array<int64_t, 3> caches_bytes{};  // L1d, L2, L3; 0: the system does not say
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;
  std::string system;    // "Linux 6.1.0 x86_64, Debian GNU/Linux 12 (bookworm)"
  std::string compiler;  // that built this program
  std::string commit;    // of the checkout that holds this program; "unknown"
};

Machine read_machine();

// Memory that can be had without swapping; -1: the system does not say.
int64_t available_memory_bytes();

// "2026-01-31T12:00:00Z".
std::string utc_date();

// Folder of the running program, "." when it cannot be told.
std::string program_folder();

}  // namespace tilewise::cli
