// Reads /proc, /sys and the checkout's .git; nothing here is needed for the library to work.
#include "cli/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <fstream>
#include <sstream>

namespace tilewise::cli {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value of the first "key<spaces>: value" line.
std::string value_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.compare(0, key.size(), key) != 0 || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

int64_t meminfo_bytes(const std::string& key) {
  const std::string value = value_in("/proc/meminfo", key);
  return value.empty() ? -1 : std::strtoll(value.c_str(), nullptr, 10) * 1024;
}

std::string instruction_sets() {
  std::string flags = value_in("/proc/cpuinfo", "flags");
  if (flags.empty()) flags = value_in("/proc/cpuinfo", "Features");  // Arm
  std::istringstream words(flags);
  std::string kept;
  for (std::string word; words >> word;) {
    for (const char* known : {"avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16",
                              "amx_bf16", "asimd", "bf16", "sve"}) {
      if (word == known) kept += (kept.empty() ? "" : " ") + word;
    }
  }
  return kept;
}

std::vector<std::string> caches() {
  std::vector<std::string> found;
  for (int i = 0; i < 8; ++i) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    const std::string level = first_line(folder + "level");
    const std::string type = first_line(folder + "type");
    if (level.empty() || type == "Instruction") continue;
    found.push_back("L" + level + (type == "Data" ? "d " : " ") + first_line(folder + "size"));
  }
  return found;
}

std::string system_name() {
  utsname name = {};
  if (::uname(&name) != 0) return "";
  std::string text = std::string(name.sysname) + " " + name.release + " " + name.machine;
  std::ifstream release("/etc/os-release");
  for (std::string line; std::getline(release, line);) {
    if (line.starts_with("PRETTY_NAME=\"")) text += ", " + line.substr(13, line.size() - 14);
  }
  return text;
}

// The commit that .git/HEAD of the folder above the program names.
std::string checkout_commit() {
  std::string folder = program_folder();
  for (int up = 0; up < 4; ++up, folder += "/..") {
    const std::string head = first_line(folder + "/.git/HEAD");
    if (head.empty()) continue;
    if (!head.starts_with("ref: ")) return head;
    const std::string name = head.substr(5);
    const std::string loose = first_line(folder + "/.git/" + name);
    if (!loose.empty()) return loose;
    std::ifstream packed(folder + "/.git/packed-refs");
    for (std::string line; std::getline(packed, line);) {
      if (line.size() == 41 + name.size() && line.ends_with(name)) return line.substr(0, 40);
    }
  }
  return "unknown";
}

}  // namespace

Machine read_machine() {
  Machine machine;
  machine.cpu = value_in("/proc/cpuinfo", "model name");
  if (machine.cpu.empty()) machine.cpu = "unknown";
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  machine.cores = ::sched_getaffinity(0, sizeof allowed, &allowed) == 0
                      ? CPU_COUNT(&allowed)
                      : ::sysconf(_SC_NPROCESSORS_ONLN);
  machine.instruction_sets = instruction_sets();
  machine.caches = caches();
  machine.memory_bytes = meminfo_bytes("MemTotal");
  machine.available_bytes = available_memory_bytes();
  machine.system = system_name();
#if defined(__clang__)
  machine.compiler = "clang " __clang_version__;
#else
  machine.compiler = "gcc " __VERSION__;
#endif
  machine.commit = checkout_commit();
  return machine;
}

int64_t available_memory_bytes() { return meminfo_bytes("MemAvailable"); }

std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string program_folder() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return ".";
  const std::string text(path, static_cast<size_t>(length));
  return text.substr(0, text.rfind('/'));
}

}  // namespace tilewise::cli
