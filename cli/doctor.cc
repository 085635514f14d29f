// tilewise doctor: what this machine has for Tilewise, and what to do about each lack. Nothing here
// is needed for the CPU path, so lacks are advice and the exit status is 0.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/machine.h"
#include "cli/measure.h"
#include "cli/verbs.h"
#include "cpu/machine.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {

namespace {

struct Finding {
  std::string what;
  std::string found;   // "" = none
  std::string advice;  // "" = nothing to do
};

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

// "NVIDIA H100, driver for CUDA 13.0"; leaves why_not when there is none.
std::string find_gpu(std::string& why_not) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    why_not = "libcuda.so.1 is not here: install NVIDIA's driver to use a GPU";
    return "";
  }
  const auto init = symbol<int (*)(unsigned)>(library, "cuInit");
  const auto count_of = symbol<int (*)(int*)>(library, "cuDeviceGetCount");
  const auto driver_version = symbol<int (*)(int*)>(library, "cuDriverGetVersion");
  const auto name_of = symbol<int (*)(char*, int, int)>(library, "cuDeviceGetName");
  if (!init || !count_of || !driver_version || !name_of) {
    why_not = "libcuda.so.1 lacks entry points: reinstall NVIDIA's driver";
    return "";
  }
  int count = 0;
  if (const int error = init(0); error != 0) {
    why_not =
        fmt::format("cuInit fails with error {}: is the device visible to this process?", error);
    return "";
  }
  if (count_of(&count) != 0 || count == 0) {
    why_not = "the driver finds no GPU: see CUDA_VISIBLE_DEVICES";
    return "";
  }
  int version = 0;
  char name[128] = "GPU";
  driver_version(&version);
  name_of(name, sizeof name, 0);
  return fmt::format("{}{}, driver for CUDA {}.{}", name,
                     count > 1 ? fmt::format(" and {} more", count - 1) : "", version / 1000,
                     version % 1000 / 10);
}

std::string find_nvrtc() {
  for (const char* name : {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"}) {
    void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    const auto version = symbol<int (*)(int*, int*)>(library, "nvrtcVersion");
    int major = 0, minor = 0;
    if (version != nullptr) version(&major, &minor);
    return fmt::format("{} {}.{}", name, major, minor);
  }
  return "";
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string cache_folder() {
  if (const std::string own = environment("TILEWISE_CACHE_DIR"); !own.empty()) return own;
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/tilewise";
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/tilewise";
}

// The folder, or the nearest one above it that exists, must take new files.
bool can_be_written(std::string folder) {
  struct stat status = {};
  while (!folder.empty() && ::stat(folder.c_str(), &status) != 0) {
    folder.resize(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/'));
  }
  return ::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0;
}

Finding cache_finding() {
  const std::string folder = cache_folder();
  Finding finding{"kernel cache", folder, ""};
  if (folder.empty()) {
    finding.advice = "set TILEWISE_CACHE_DIR or HOME: GPU kernels would be compiled each time";
  } else if (!can_be_written(folder)) {
    finding.advice = "cannot be written: set TILEWISE_CACHE_DIR to a folder that can";
  }
  return finding;
}

Finding isa_finding(const Machine& machine) {
  Finding finding{"instruction set", machine.isa, ""};
  if (machine.isas.size() > 1) {
    finding.found += fmt::format(" (this machine runs {})", fmt::join(machine.isas, ", "));
  }
  if (machine.isa == "scalar") {
    finding.advice = "no vector instructions in use, which is slow";
  } else if (machine.isa == "none") {
    finding.advice = "TILEWISE_ISA names none that this machine has: unset it";
  }
  return finding;
}

Finding peak_finding() {
  const double peak = cpu::measure_fma_peak(1);
  return {"fp32 peak", fmt::format("{:.0f} GFLOP/s of multiply-add on one core", peak * 1e-9), ""};
}

Finding caches_finding(const Machine& machine) {
  Finding finding{"caches", "", ""};
  const char* const names[] = {"L1d", "L2", "L3"};
  for (size_t i = 0; i < machine.caches_bytes.size(); ++i) {
    const auto bytes = static_cast<double>(machine.caches_bytes[i]);
    if (bytes == 0) continue;
    finding.found +=
        fmt::format("{}{} {}", finding.found.empty() ? "" : ", ", names[i], bytes_text(bytes));
  }
  if (finding.found.empty()) finding.found = "not known";
  return finding;
}

Finding threads_finding(const Machine& machine) {
  Finding finding{"threads", fmt::format("{} of {} cores", num_threads(), machine.cores), ""};
  if (num_threads() < machine.cores) finding.advice = "set --threads to use all cores";
  return finding;
}

Finding memory_finding(const Machine& machine) {
  const auto total = static_cast<double>(machine.memory_bytes);
  const auto free = static_cast<double>(machine.available_bytes);
  Finding finding{"memory", fmt::format("{}, {} free", bytes_text(total), bytes_text(free)), ""};
  if (free < 1 << 30) finding.advice = "below 1 GiB: long problems may not fit";
  return finding;
}

std::vector<Finding> findings() {
  const Machine machine = read_machine();
  std::string gpu_lack;
  const std::string gpu = find_gpu(gpu_lack);
  const std::string nvrtc = find_nvrtc();
  std::string forced;
  for (const char* name : {"TILEWISE_BACKEND", "TILEWISE_ISA"}) {
    if (!environment(name).empty()) forced += fmt::format("{}={} ", name, environment(name));
  }
  return {
      {"tilewise", fmt::format("{}, commit {}", version(), machine.commit), ""},
      {"system", machine.system, ""},
      {"cpu", machine.cpu, ""},
      isa_finding(machine),
      peak_finding(),
      caches_finding(machine),
      memory_finding(machine),
      threads_finding(machine),
      {"gpu", gpu, gpu_lack},
      {"nvrtc", nvrtc,
       nvrtc.empty() ? "not on the library path: pip install nvidia-cuda-nvrtc, or the CUDA toolkit"
                     : ""},
      cache_finding(),
      {"environment", forced.empty() ? "nothing forced" : forced,
       forced.empty() ? "" : "unset these to let Tilewise choose"},
  };
}

}  // namespace

int doctor(const Shared& shared) {
  std::vector<Row> rows;
  for (const Finding& finding : findings()) {
    Row row;
    row.add("what", finding.what).add("found", finding.found);
    if (!finding.advice.empty()) row.add("advice", finding.advice);
    rows.push_back(row);
    if (shared.format != Format::text) continue;
    fmt::print("{:<4} {:<17} {}\n", finding.advice.empty() ? "ok" : "note", finding.what,
               finding.found.empty() ? "none" : finding.found);
    if (!finding.advice.empty()) fmt::print("     {:<17} -> {}\n", "", finding.advice);
  }
  if (shared.format == Format::json) print_json(shared.command, rows);
  if (shared.format == Format::csv) print_csv(rows);
  return 0;
}

}  // namespace tilewise::cli
