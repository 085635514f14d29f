// Finds libcuda and NVRTC with dlopen and fills the tables of driver.h; words what is missing and
// how to get it. The search order of NVRTC is in docs/jit.md.
#include "driver.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <mutex>
#include <vector>

#include "tilewise/tilewise.hpp"

namespace tilewise::gpu {
namespace {

// Fills function pointers by name and remembers the first that is missing.
class SymbolReader {
 public:
  explicit SymbolReader(void* library) : library_(library) {}

  template <class Function>
  void read(Function*& slot, const char* name) {
    slot = reinterpret_cast<Function*>(dlsym(library_, name));
    if (slot == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

// Versioned names are what cuda.h maps the plain ones to.
std::string read_driver(void* library, Driver& d) {
  SymbolReader reader(library);
  reader.read(d.cuInit, "cuInit");
  reader.read(d.cuDriverGetVersion, "cuDriverGetVersion");
  reader.read(d.cuGetErrorName, "cuGetErrorName");
  reader.read(d.cuGetErrorString, "cuGetErrorString");
  reader.read(d.cuDeviceGetCount, "cuDeviceGetCount");
  reader.read(d.cuDeviceGet, "cuDeviceGet");
  reader.read(d.cuDeviceGetName, "cuDeviceGetName");
  reader.read(d.cuDeviceGetAttribute, "cuDeviceGetAttribute");
  reader.read(d.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  reader.read(d.cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
  reader.read(d.cuCtxGetCurrent, "cuCtxGetCurrent");
  reader.read(d.cuCtxGetDevice, "cuCtxGetDevice");
  reader.read(d.cuCtxPushCurrent, "cuCtxPushCurrent_v2");
  reader.read(d.cuCtxPopCurrent, "cuCtxPopCurrent_v2");
  reader.read(d.cuCtxSynchronize, "cuCtxSynchronize");
  reader.read(d.cuPointerGetAttribute, "cuPointerGetAttribute");
  reader.read(d.cuLibraryLoadData, "cuLibraryLoadData");
  reader.read(d.cuLibraryUnload, "cuLibraryUnload");
  reader.read(d.cuLibraryGetKernel, "cuLibraryGetKernel");
  reader.read(d.cuKernelSetAttribute, "cuKernelSetAttribute");
  reader.read(d.cuKernelGetAttribute, "cuKernelGetAttribute");
  reader.read(d.cuLaunchKernel, "cuLaunchKernel");
  reader.read(d.cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled");
  reader.read(d.cuMemAlloc, "cuMemAlloc_v2");
  reader.read(d.cuMemFree, "cuMemFree_v2");
  reader.read(d.cuMemAllocAsync, "cuMemAllocAsync");
  reader.read(d.cuMemFreeAsync, "cuMemFreeAsync");
  reader.read(d.cuMemcpyHtoD, "cuMemcpyHtoD_v2");
  reader.read(d.cuMemcpyDtoH, "cuMemcpyDtoH_v2");
  reader.read(d.cuMemsetD32, "cuMemsetD32_v2");
  reader.read(d.cuStreamCreate, "cuStreamCreate");
  reader.read(d.cuStreamDestroy, "cuStreamDestroy_v2");
  reader.read(d.cuStreamSynchronize, "cuStreamSynchronize");
  reader.read(d.cuStreamBeginCapture, "cuStreamBeginCapture_v2");
  reader.read(d.cuStreamEndCapture, "cuStreamEndCapture");
  reader.read(d.cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags");
  reader.read(d.cuGraphLaunch, "cuGraphLaunch");
  reader.read(d.cuGraphDestroy, "cuGraphDestroy");
  reader.read(d.cuGraphExecDestroy, "cuGraphExecDestroy");
  reader.read(d.cuEventCreate, "cuEventCreate");
  reader.read(d.cuEventDestroy, "cuEventDestroy_v2");
  reader.read(d.cuEventRecord, "cuEventRecord");
  reader.read(d.cuEventSynchronize, "cuEventSynchronize");
  reader.read(d.cuEventElapsedTime, "cuEventElapsedTime");
  return reader.missing();
}

std::string read_nvrtc(void* library, Nvrtc& n) {
  SymbolReader reader(library);
  reader.read(n.nvrtcGetErrorString, "nvrtcGetErrorString");
  reader.read(n.nvrtcVersion, "nvrtcVersion");
  reader.read(n.nvrtcCreateProgram, "nvrtcCreateProgram");
  reader.read(n.nvrtcDestroyProgram, "nvrtcDestroyProgram");
  reader.read(n.nvrtcCompileProgram, "nvrtcCompileProgram");
  reader.read(n.nvrtcGetCUBINSize, "nvrtcGetCUBINSize");
  reader.read(n.nvrtcGetCUBIN, "nvrtcGetCUBIN");
  reader.read(n.nvrtcGetProgramLogSize, "nvrtcGetProgramLogSize");
  reader.read(n.nvrtcGetProgramLog, "nvrtcGetProgramLog");
  return reader.missing();
}

struct LoadedDriver {
  Driver driver{};
  std::string why;

  LoadedDriver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why = "no NVIDIA driver: libcuda.so.1 was not found (install the driver 525 or newer)";
      return;
    }
    const std::string missing = read_driver(library, driver);
    if (!missing.empty()) {
      why = "the NVIDIA driver is too old: " + missing + " is missing (need 525 or newer)";
      return;
    }
    const CUresult result = driver.cuInit(0);
    if (result != kCudaSuccess) {
      const char* text = nullptr;
      driver.cuGetErrorString(result, &text);
      why = std::string("cuInit failed: ") + (text != nullptr ? text : "unknown error");
    }
  }
};

constexpr const char* kNvrtcNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Directories that may hold NVRTC besides the linker's own: CUDA_HOME, then the PyPI package
// nvidia-cuda-nvrtc beside this library or in the active virtual environment.
std::vector<std::string> nvrtc_patterns() {
  std::vector<std::string> patterns;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* home = std::getenv(variable)) {
      patterns.push_back(std::string(home) + "/lib64/");
      patterns.push_back(std::string(home) + "/lib/");
    }
  }
  patterns.push_back("/usr/local/cuda/lib64/");
  std::vector<std::string> packages;
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&find_nvrtc), &self) != 0 && self.dli_fname != nullptr) {
    packages.push_back(directory_of(self.dli_fname) + "/..");
  }
  if (const char* venv = std::getenv("VIRTUAL_ENV")) {
    packages.push_back(std::string(venv) + "/lib/python3*/site-packages");
  }
  for (const std::string& root : packages) {
    patterns.push_back(root + "/nvidia/cu13/lib/");
    patterns.push_back(root + "/nvidia/cuda_nvrtc/lib/");
  }
  return patterns;
}

void* open_by_pattern(const std::string& pattern) {
  glob_t found{};
  void* library = nullptr;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc && library == nullptr; ++i) {
      library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
    }
  }
  globfree(&found);
  return library;
}

// NVRTC opens libnvrtc-builtins by its name alone: where the linker does not look, as in a Python
// package, it has to be in the process before.
void open_builtins(const std::string& directory) {
  open_by_pattern(directory + "libnvrtc-builtins.so.[0-9]*.[0-9]*");
}

void* open_nvrtc() {
  for (const int extra : {RTLD_NOLOAD, 0}) {
    for (const char* name : kNvrtcNames) {
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | extra)) return library;
    }
  }
  for (const std::string& directory : nvrtc_patterns()) {
    for (const char* name : kNvrtcNames) {
      if (void* library = open_by_pattern(directory + name)) {
        open_builtins(directory);
        return library;
      }
    }
  }
  return nullptr;
}

struct LoadedNvrtc {
  Nvrtc nvrtc{};
  std::string why;
  std::string path;

  LoadedNvrtc() {
    void* library = open_nvrtc();
    if (library == nullptr) {
      why =
          "NVRTC was not found: install the CUDA toolkit or the Python package "
          "nvidia-cuda-nvrtc, or set CUDA_HOME";
      return;
    }
    const std::string missing = read_nvrtc(library, nvrtc);
    if (!missing.empty()) {
      why = "NVRTC is too old: " + missing + " is missing (need 12.0 or newer)";
      return;
    }
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(nvrtc.nvrtcVersion), &info) != 0) path = info.dli_fname;
  }
};

// Primary contexts are retained once for the process: retaining is no cheap call.
constexpr int kMaxDevices = 64;

CUcontext primary_context(CUdevice device) {
  static std::mutex mutex;
  static CUcontext contexts[kMaxDevices] = {};
  if (device < 0 || device >= kMaxDevices) {
    throw Error(Status::invalid_argument, "device: got " + std::to_string(device) +
                                              ", expected 0.." + std::to_string(kMaxDevices - 1));
  }
  const std::lock_guard lock(mutex);
  if (contexts[device] == nullptr) {
    check_cuda(driver().cuDevicePrimaryCtxRetain(&contexts[device], device),
               "cuDevicePrimaryCtxRetain");
  }
  return contexts[device];
}

const LoadedDriver& loaded_driver() {
  static const LoadedDriver loaded;
  return loaded;
}

const LoadedNvrtc& loaded_nvrtc() {
  static const LoadedNvrtc loaded;
  return loaded;
}

}  // namespace

const Driver* find_driver(std::string* why) {
  const LoadedDriver& loaded = loaded_driver();
  if (why != nullptr) *why = loaded.why;
  return loaded.why.empty() ? &loaded.driver : nullptr;
}

const Nvrtc* find_nvrtc(std::string* why) {
  const LoadedNvrtc& loaded = loaded_nvrtc();
  if (why != nullptr) *why = loaded.why;
  return loaded.why.empty() ? &loaded.nvrtc : nullptr;
}

std::string nvrtc_path() { return loaded_nvrtc().path; }

const Driver& driver() {
  std::string why;
  const Driver* found = find_driver(&why);
  if (found == nullptr) throw Error(Status::device_error, why);
  return *found;
}

void check_cuda(CUresult result, const char* call) {
  if (result == kCudaSuccess) return;
  const char* name = nullptr;
  const char* text = nullptr;
  driver().cuGetErrorName(result, &name);
  driver().cuGetErrorString(result, &text);
  throw Error(Status::device_error, std::string(call) + ": " + (name != nullptr ? name : "?") +
                                        " (" + (text != nullptr ? text : "unknown error") + ")");
}

ScopedDevice::ScopedDevice(CUdevice device) {
  const Driver& d = driver();
  CUcontext current = nullptr;
  CUdevice current_device = -1;
  check_cuda(d.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (current != nullptr) check_cuda(d.cuCtxGetDevice(&current_device), "cuCtxGetDevice");
  if (current_device == device) return;
  check_cuda(d.cuCtxPushCurrent(primary_context(device)), "cuCtxPushCurrent");
  pushed_ = true;
}

ScopedDevice::~ScopedDevice() {
  CUcontext popped = nullptr;
  if (pushed_) driver().cuCtxPopCurrent(&popped);
}

}  // namespace tilewise::gpu
