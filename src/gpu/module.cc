// Kernel text, NVRTC compilation, cache keys and loaded kernels; the steps are drawn in
// docs/jit.md.
#include "module.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cache.h"
#include "shape.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::gpu {
namespace {

const char* word(Family family) {
  switch (family) {
    case Family::kForwardSm90:
      return "Family::kForwardSm90";
    case Family::kForwardMma:
      return "Family::kForwardMma";
  }
  return "?";
}

const char* word(Element element) {
  switch (element) {
    case Element::kBf16:
      return "Element::kBf16";
    case Element::kFp16:
      return "Element::kFp16";
    case Element::kFp32:
      return "Element::kFp32";
  }
  return "?";
}

const char* word(LoopOrder order) {
  return order == LoopOrder::kOverlapped ? "LoopOrder::kOverlapped" : "LoopOrder::kSequential";
}

const char* word(Schedule schedule) {
  return schedule == Schedule::kStatic ? "Schedule::kStatic" : "Schedule::kDynamic";
}

std::string word(int value) { return std::to_string(value); }

// The options of one compilation; part of the cache key.
std::vector<std::string> options_for(std::string_view arch) {
  return {"--gpu-architecture=" + std::string(arch), "--std=c++20",
          "--device-as-default-execution-space", "--ptxas-options=-v", "--no-source-include"};
}

// Owns an nvrtcProgram.
class Program {
 public:
  Program(const Nvrtc& nvrtc, const std::string& stub) : nvrtc_(nvrtc) {
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const KernelSource& source : kernel_sources()) {
      texts.push_back(source.text);
      names.push_back(source.name);
    }
    require(nvrtc_.nvrtcCreateProgram(&program_, stub.c_str(), "tilewise_kernel.cu",
                                      static_cast<int>(texts.size()), texts.data(), names.data()),
            "nvrtcCreateProgram");
  }
  ~Program() { nvrtc_.nvrtcDestroyProgram(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  bool compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    const int count = static_cast<int>(pointers.size());
    return nvrtc_.nvrtcCompileProgram(program_, count, pointers.data()) == 0;
  }

  std::string log() {
    size_t bytes = 0;
    require(nvrtc_.nvrtcGetProgramLogSize(program_, &bytes), "nvrtcGetProgramLogSize");
    std::string text(bytes, '\0');
    require(nvrtc_.nvrtcGetProgramLog(program_, text.data()), "nvrtcGetProgramLog");
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }

  std::string cubin() {
    size_t bytes = 0;
    require(nvrtc_.nvrtcGetCUBINSize(program_, &bytes), "nvrtcGetCUBINSize");
    std::string code(bytes, '\0');
    require(nvrtc_.nvrtcGetCUBIN(program_, code.data()), "nvrtcGetCUBIN");
    return code;
  }

 private:
  void require(nvrtcResult result, const char* call) {
    if (result == 0) return;
    throw Error(Status::internal, std::string(call) + ": " + nvrtc_.nvrtcGetErrorString(result));
  }

  const Nvrtc& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

const Nvrtc& required_nvrtc() {
  std::string why;
  const Nvrtc* nvrtc = find_nvrtc(&why);
  if (nvrtc == nullptr) throw Error(Status::unsupported, why);
  return *nvrtc;
}

std::string arch_of(CUdevice device) {
  int major = 0;
  int minor = 0;
  check_cuda(driver().cuDeviceGetAttribute(&major, kAttributeMajor, device),
             "cuDeviceGetAttribute");
  check_cuda(driver().cuDeviceGetAttribute(&minor, kAttributeMinor, device),
             "cuDeviceGetAttribute");
  return "sm_" + std::to_string(major) + std::to_string(minor) + (major >= 9 ? "a" : "");
}

// A loaded kernel has its shared memory limit raised once for each device it was asked for.
struct Entry {
  std::once_flag once;
  Kernel kernel;
};

void load(Entry& entry, const KernelSpec& spec, CUdevice device) {
  const std::string cubin = find_cubin(spec, arch_of(device));
  const ScopedDevice scope(device);
  const Driver& d = driver();
  CUlibrary library = nullptr;
  check_cuda(d.cuLibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
             "cuLibraryLoadData");
  const ForwardShape shape = shape_of(spec);
  Kernel kernel;
  kernel.shared_bytes = shape.shared_bytes;
  kernel.threads = shape.threads;
  check_cuda(d.cuLibraryGetKernel(&kernel.handle, library, "tilewise_kernel"),
             "cuLibraryGetKernel");
  check_cuda(
      d.cuKernelSetAttribute(kFunctionMaxDynamicShared, kernel.shared_bytes, kernel.handle, device),
      "cuKernelSetAttribute");
  entry.kernel = kernel;
}

}  // namespace

const char* name_of(Family family) {
  return family == Family::kForwardSm90 ? "forward_sm90" : "forward_mma";
}

std::string text_of(const KernelSpec& spec) {
  std::string text;
  for_each_field(spec, [&](const char* name, const auto& value) {
    if (!text.empty()) text += ", ";
    text += std::string(".") + name + " = " + word(value);
  });
  return text;
}

std::string stub_of(const KernelSpec& spec) {
  const std::string kernel = name_of(spec.family);
  return "#include \"kernels/" + kernel +
         ".cuh\"\n"
         "namespace tilewise::gpu {\n"
         "constexpr KernelSpec kSpec{" +
         text_of(spec) +
         "};\n"
         "constexpr ForwardShape kShape = shape_of(kSpec);\n"
         "extern \"C\" __global__ void __launch_bounds__(kShape.threads, kShape.blocks)\n"
         "tilewise_kernel(const __grid_constant__ ForwardArgs args) {\n"
         "  " +
         kernel +
         "<kSpec>(args);\n"
         "}\n"
         "}  // namespace tilewise::gpu\n";
}

Compiled compile(const KernelSpec& spec, std::string_view arch) {
  return compile_stub(stub_of(spec), arch);
}

Compiled compile_stub(const std::string& stub, std::string_view arch) {
  Program program(required_nvrtc(), stub);
  const bool compiles = program.compile(options_for(arch));
  Compiled compiled;
  compiled.log = program.log();
  if (!compiles) {
    const KernelStore cache(cache_directory(), KernelStore::Access::kReadWrite);
    const std::string path = cache.write_source(std::string(arch) + "\n" + stub, stub);
    throw Error(Status::internal, "NVRTC could not compile a kernel; " +
                                      (path.empty() ? "its source is\n" + stub
                                                    : "the kernel's source is in " + path) +
                                      "\n" + compiled.log);
  }
  compiled.cubin = program.cubin();
  return compiled;
}

std::string pack_key(const KernelSpec& spec, std::string_view arch) {
  std::string key = "spec " + text_of(spec) + "\nsources " + kernel_sources_sha256() + "\n";
  for (const std::string& option : options_for(arch)) key += option + "\n";
  return key;
}

std::string cache_key(const KernelSpec& spec, std::string_view arch) {
  int major = 0;
  int minor = 0;
  required_nvrtc().nvrtcVersion(&major, &minor);
  return pack_key(spec, arch) + "nvrtc " + std::to_string(major) + "." + std::to_string(minor) +
         "\n";
}

std::string find_cubin(const KernelSpec& spec, std::string_view arch) {
  const KernelStore pack(pack_directory(), KernelStore::Access::kRead);
  if (std::optional<std::string> cubin = pack.read(pack_key(spec, arch))) return *cubin;
  const KernelStore cache(cache_directory(), KernelStore::Access::kReadWrite);
  const std::string key = cache_key(spec, arch);
  if (std::optional<std::string> cubin = cache.read(key)) return *cubin;
  const Compiled compiled = compile(spec, arch);
  cache.write(key, compiled.cubin);
  return compiled.cubin;
}

void prebuild(const KernelSpec& spec, std::string_view arch, const std::string& directory) {
  const KernelStore pack(directory, KernelStore::Access::kReadWrite);
  const Compiled compiled = compile(spec, arch);
  if (!pack.write(pack_key(spec, arch), compiled.cubin)) {
    const std::string why = pack.why_closed();
    throw Error(Status::internal,
                "prebuild: cannot write to " + directory + (why.empty() ? "" : " (" + why + ")"));
  }
}

const Kernel& load_kernel(const KernelSpec& spec, CUdevice device) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Entry>> entries;
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex);
    std::unique_ptr<Entry>& slot = entries[std::to_string(device) + " " + text_of(spec)];
    if (slot == nullptr) slot = std::make_unique<Entry>();
    entry = slot.get();
  }
  std::call_once(entry->once, [&] { load(*entry, spec, device); });
  return entry->kernel;
}

CUfunction load_stub(const std::string& stub, const char* kernel, CUdevice device) {
  static std::mutex mutex;
  static std::map<std::string, CUlibrary> libraries;  // by arch and stub
  const std::string arch = arch_of(device);
  const std::lock_guard lock(mutex);
  const ScopedDevice scope(device);
  CUlibrary& library = libraries[arch + "\n" + stub];
  if (library == nullptr) {
    const std::string cubin = compile_stub(stub, arch).cubin;
    check_cuda(driver().cuLibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr,
                                          nullptr, 0),
               "cuLibraryLoadData");
  }
  CUkernel handle = nullptr;
  check_cuda(driver().cuLibraryGetKernel(&handle, library, kernel), "cuLibraryGetKernel");
  return reinterpret_cast<CUfunction>(handle);
}

}  // namespace tilewise::gpu
