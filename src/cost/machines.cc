// Named machines, from data sheets (SXM boards, dense rates), and the illustrative example.
//
// Exponentials: 16 a clock in each core of these GPUs (special function units), at boost clock.
// Fast memory: A100 192 KiB a core is L1 and shared memory together, as it is usually quoted (a
// block can have 163 KiB); H100 and H200 228 KiB is the shared memory. fp32 is the plain rate, no
// TF32.
#include <array>

#include "error.h"
#include "tilewise/cost.hpp"

namespace tilewise {

namespace {

struct Preset {
  const char* name;
  const char* title;
  double flops_16_bit;
  double flops_32_bit;
  double bytes_per_s;
  int64_t cores;
  double fast_kib;
  double cache_mib;  // L2
  double clock_hz;   // 0: exponentials and fast bandwidth are not given
};

constexpr std::array<Preset, 4> kPresets = {{
    {"example", "illustrative, 300 TFLOP/s and 2 TB/s", 300e12, 300e12, 2e12, 1, 128, 0, 0},
    {"a100", "NVIDIA A100 SXM 80 GB", 312e12, 19.5e12, 2.039e12, 108, 192, 40, 1.41e9},
    {"h100", "NVIDIA H100 SXM", 989e12, 67e12, 3.35e12, 132, 228, 50, 1.83e9},
    {"h200", "NVIDIA H200 SXM", 989e12, 67e12, 4.8e12, 132, 228, 50, 1.83e9},
}};

constexpr double kExpsAClock = 16;
constexpr double kFastBytesAClock = 128;

}  // namespace

std::vector<std::string> machine_presets() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

MachineRoofs machine_preset(std::string_view name, DType dtype) {
  for (const Preset& preset : kPresets) {
    if (preset.name != name) continue;
    MachineRoofs roofs;
    roofs.name = preset.title;
    roofs.flops_per_s = size_of(dtype) == 2 ? preset.flops_16_bit : preset.flops_32_bit;
    roofs.bytes_per_s = preset.bytes_per_s;
    roofs.cores = preset.cores;
    roofs.fast_bytes = preset.fast_kib * 1024;
    roofs.cache_bytes = preset.cache_mib * 1024 * 1024;
    const double clocks = preset.clock_hz * static_cast<double>(preset.cores);
    roofs.exps_per_s = kExpsAClock * clocks;
    roofs.fast_bytes_per_s = kFastBytesAClock * clocks;
    return roofs;
  }
  throw_invalid("tilewise::machine_preset", "name", "\"" + std::string(name) + "\"",
                "example, a100, h100 or h200", "");
}

}  // namespace tilewise
