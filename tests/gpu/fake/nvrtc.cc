// A stand-in for libnvrtc.so.13 that compiles anything into four bytes. FAKE_NVRTC=compile_fails
// makes it refuse with a log. Built with FAKE_OLD_NVRTC it lacks an entry point.
#include <cstdlib>
#include <cstring>
#include <string_view>

#define FAKE extern "C" __attribute__((visibility("default"))) int

namespace {

constexpr char kCubin[] = "fake";
constexpr char kLog[] = "tilewise_kernel.cu(7): error: the fake was told to fail";

bool fails() {
  const char* chosen = std::getenv("FAKE_NVRTC");
  return chosen != nullptr && std::string_view(chosen) == "compile_fails";
}

char program;

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* nvrtcGetErrorString(int) {
  return "NVRTC_ERROR_COMPILATION";
}
FAKE nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
FAKE nvrtcCreateProgram(void** made, const char*, const char*, int, const char* const*,
                        const char* const*) {
  *made = &program;
  return 0;
}
FAKE nvrtcDestroyProgram(void**) { return 0; }
FAKE nvrtcCompileProgram(void*, int, const char* const*) { return fails() ? 6 : 0; }
#ifndef FAKE_OLD_NVRTC
FAKE nvrtcGetCUBINSize(void*, size_t* bytes) {
  *bytes = sizeof kCubin - 1;
  return 0;
}
#endif
FAKE nvrtcGetCUBIN(void*, char* cubin) {
  std::memcpy(cubin, kCubin, sizeof kCubin - 1);
  return 0;
}
FAKE nvrtcGetProgramLogSize(void*, size_t* bytes) {
  *bytes = fails() ? sizeof kLog : 1;
  return 0;
}
FAKE nvrtcGetProgramLog(void*, char* log) {
  if (fails()) {
    std::memcpy(log, kLog, sizeof kLog);
  } else {
    *log = '\0';
  }
  return 0;
}
