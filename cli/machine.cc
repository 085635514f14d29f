// Reads /proc, /sys and the checkout's .git; nothing here is needed for the library to work.
#include "cli/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "cpu/machine.h"

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
  const cpu::CpuMachine& processor = cpu::cpu_machine();
  machine.cpu = processor.model.empty() ? "unknown" : processor.model;
  machine.cores = processor.cores;
  machine.isa = processor.isa;
  machine.isas = processor.isas;
  machine.caches_bytes = {processor.l1d_bytes, processor.l2_bytes, processor.l3_bytes};
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
