// The few entry points, declared here; values are those of cublas_api.h and library_types.h.
#include "cublas.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "tilewise/tilewise.hpp"

namespace tilewise::gpu {

namespace {

using cublasStatus = int;
using cublasHandle = struct CublasContext*;

constexpr int kNoTranspose = 0;    // CUBLAS_OP_N
constexpr int kTranspose = 1;      // CUBLAS_OP_T
constexpr int kTypeFp16 = 2;       // CUDA_R_16F
constexpr int kTypeBf16 = 14;      // CUDA_R_16BF
constexpr int kComputeFp32 = 68;   // CUBLAS_COMPUTE_32F
constexpr int kAnyAlgorithm = -1;  // CUBLAS_GEMM_DEFAULT

constexpr const char* kNames[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};

}  // namespace

struct Cublas {
  cublasStatus (*create)(cublasHandle* handle) = nullptr;
  cublasStatus (*set_stream)(cublasHandle handle, CUstream stream) = nullptr;
  cublasStatus (*multiply)(cublasHandle handle, int op_a, int op_b, int m, int n, int k,
                           const void* alpha, const void* a, int type_a, int lda,
                           long long stride_a, const void* b, int type_b, int ldb,
                           long long stride_b, const void* beta, void* c, int type_c, int ldc,
                           long long stride_c, int batch, int compute, int algorithm) = nullptr;
};

namespace {

// The linker's own, beside NVRTC (one folder holds both in toolkits and in PyPI packages), and
// CUDA_HOME.
void* open_cublas() {
  std::vector<std::string> folders = {""};
  const std::string nvrtc = nvrtc_path();
  if (nvrtc.find('/') != std::string::npos) {
    folders.push_back(nvrtc.substr(0, nvrtc.rfind('/') + 1));
  }
  if (const char* home = std::getenv("CUDA_HOME")) folders.push_back(std::string(home) + "/lib64/");
  for (const std::string& folder : folders) {
    for (const char* name : kNames) {
      if (void* library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    }
  }
  return nullptr;
}

struct Loaded {
  Cublas cublas{};
  std::string why;

  Loaded() {
    void* library = open_cublas();
    if (library == nullptr) {
      why =
          "cuBLAS was not found: install the CUDA toolkit or the Python package nvidia-cublas, or "
          "set CUDA_HOME";
      return;
    }
    read(library, cublas.create, "cublasCreate_v2");
    read(library, cublas.set_stream, "cublasSetStream_v2");
    read(library, cublas.multiply, "cublasGemmStridedBatchedEx");
  }
  template <class Function>
  void read(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) why = std::string("cuBLAS is too old: ") + name + " is missing";
  }
};

void require(cublasStatus status, const char* call) {
  if (status == 0) return;
  throw Error(Status::device_error,
              std::string(call) + ": cuBLAS status " + std::to_string(status));
}

const Cublas& cublas() {
  std::string why;
  const Cublas* found = find_cublas(&why);
  if (found == nullptr) throw Error(Status::unsupported, why);
  return *found;
}

// One handle for each device, for the life of the process. A call sets its stream, so one at a
// time.
struct Handles {
  std::mutex mutex;
  std::map<CUdevice, cublasHandle> of_device;

  cublasHandle get(CUdevice device) {
    cublasHandle& handle = of_device[device];
    if (handle == nullptr) require(cublas().create(&handle), "cublasCreate");
    return handle;
  }
};

Handles& handles() {
  static Handles all;
  return all;
}

}  // namespace

const Cublas* find_cublas(std::string* why) {
  static const Loaded loaded;
  if (loaded.why.empty()) return &loaded.cublas;
  if (why != nullptr) *why = loaded.why;
  return nullptr;
}

void prepare_products(CUdevice device) {
  const std::lock_guard lock(handles().mutex);
  handles().get(device);
}

void multiply(const Product& p, CUdevice device, CUstream stream) {
  const std::lock_guard lock(handles().mutex);
  const cublasHandle handle = handles().get(device);
  require(cublas().set_stream(handle, stream), "cublasSetStream");
  const int type = p.element == Element::kBf16 ? kTypeBf16 : kTypeFp16;
  const float nothing = 0;
  require(cublas().multiply(
              handle, p.a.transposed ? kTranspose : kNoTranspose, kNoTranspose,
              static_cast<int>(p.rows), static_cast<int>(p.columns), static_cast<int>(p.inner),
              &p.factor, p.a.data, type, static_cast<int>(p.a.column_stride), p.a.batch_stride,
              p.b.data, type, static_cast<int>(p.b.column_stride), p.b.batch_stride, &nothing,
              const_cast<void*>(p.c.data), type, static_cast<int>(p.c.column_stride),
              p.c.batch_stride, static_cast<int>(p.batch), kComputeFp32, kAnyAlgorithm),
          "cublasGemmStridedBatchedEx");
}

}  // namespace tilewise::gpu
