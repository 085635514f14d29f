// KernelSpec -> loaded kernel. A spec becomes a three-line stub (include, constexpr spec, entry
// point), NVRTC makes a cubin of it, and the cubin stays in memory and in the disk cache (cache.h).
// Kernels are loaded as context-independent libraries: one load serves every context and thread.
// Docs: docs/jit.md
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "driver.h"
#include "spec.h"

namespace tilewise::gpu {

// One embedded source file, by the name it is included by. Written at build time.
struct KernelSource {
  const char* name;
  const char* text;
};
std::span<const KernelSource> kernel_sources();
const char* kernel_sources_sha256();

// "forward_sm90": the kernel, its file and its page in docs.
const char* name_of(Family family);

// ".element = Element::kBf16, .qk_dim = 128, ...": the identity of a kernel.
std::string text_of(const KernelSpec& spec);
// What NVRTC compiles.
std::string stub_of(const KernelSpec& spec);

struct Compiled {
  std::string cubin;
  std::string log;  // NVRTC's and ptxas' messages: registers, spills, warnings
};
// Needs NVRTC, but no GPU. Throws Error with the log when the stub does not compile.
Compiled compile(const KernelSpec& spec, std::string_view arch);

// What must be equal for a cubin to be used again: spec, sources, flags, arch.
std::string pack_key(const KernelSpec& spec, std::string_view arch);
// The same and the version of NVRTC: what the user's cache goes by.
std::string cache_key(const KernelSpec& spec, std::string_view arch);

// A cubin from the shipped pack, the user's cache, or NVRTC (then kept in the cache).
std::string find_cubin(const KernelSpec& spec, std::string_view arch);
// Compiles into a pack directory; throws Error when it cannot be written.
void prebuild(const KernelSpec& spec, std::string_view arch, const std::string& directory);

struct Kernel {
  CUkernel handle = nullptr;
  int shared_bytes = 0;
  int threads = 0;
  CUfunction function() const { return reinterpret_cast<CUfunction>(handle); }
};

// The kernel of a spec, compiled on first use. Thread-safe; the reference stays valid.
const Kernel& load_kernel(const KernelSpec& spec, CUdevice device);

// A kernel of the caller's own stub, for what is no attention kernel: compiled when first asked for
// in this process, with static shared memory only. Thread-safe.
CUfunction load_stub(const std::string& stub, const char* kernel, CUdevice device);
// What NVRTC makes of a stub; needs no GPU. Throws Error with the log when it does not compile.
Compiled compile_stub(const std::string& stub, std::string_view arch);

}  // namespace tilewise::gpu
