// forward_compile [TEXT [DIRECTORY]]: compiles the forward kernels of the support matrix with
// NVRTC, without a GPU, on all cores, and fails on what ptxas must not do: spills, serialised wgmma
// (C75xx), too many registers or bytes of shared memory. Prints the tables of docs/forward-sm90.md
// and docs/forward-mma.md. TEXT: only rows whose names hold it. DIRECTORY: takes the cubins, for
// sass_check.py.
// forward_compile --where: prints which NVRTC is used; exit status 1 when there is none.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "launch.h"
#include "shape.h"
#include "tilewise/tilewise.hpp"

namespace {

using namespace tilewise;
using namespace tilewise::gpu;

struct Arch {
  const char* name;
  int major;
  int minor;
  int shared_bytes;  // largest of a CTA
};
constexpr Arch kSm80{"sm_80", 8, 0, 166912};
constexpr Arch kSm89{"sm_89", 8, 9, 101376};
constexpr Arch kSm90{"sm_90a", 9, 0, 232448};
constexpr Arch kSm120{"sm_120a", 12, 0, 101376};

struct Row {
  std::string name;
  Arch arch;
  KernelSpec spec;
};

struct Result {
  Compiled compiled;
  double ms = 0;
  std::string problem;  // empty = passed
};

ForwardProblem problem_for(int head_dim, int value_dim, int64_t right) {
  ForwardProblem problem;
  problem.batch = 1;
  problem.q_heads = problem.kv_heads = 1;
  problem.q_len = problem.kv_len = problem.total_q = problem.total_kv = 4096;
  problem.head_dim = head_dim;
  problem.value_dim = value_dim;
  problem.mask = {-1, right, 0, 0};
  problem.lse = true;
  return problem;
}

// The rows of one kernel on one arch.
struct Matrix {
  std::vector<Row>& rows;
  Arch arch;
  Family family;

  void add(const std::string& name, const ForwardProblem& problem) const {
    DeviceFacts facts;
    facts.major = arch.major;
    facts.minor = arch.minor;
    facts.shared_bytes = arch.shared_bytes;
    const std::string kernel = family == Family::kForwardSm90 ? "" : "mma ";
    rows.push_back({kernel + name, arch, plan_family(problem, facts, family).spec});
  }

  void add_main(int d, int dv) const {
    const std::string name = "d" + std::to_string(d) + "/" + std::to_string(dv);
    add(name + " full", problem_for(d, dv, -1));
    add(name + " causal", problem_for(d, dv, 0));
    if (family != Family::kForwardMma) return;
    ForwardProblem p = problem_for(d, dv, 0);
    p.element = Element::kFp32;
    add(name + " fp32 causal", p);
  }

  void add_options(int d, int dv) const {
    const std::string name = "d" + std::to_string(d) + "/" + std::to_string(dv);
    const ForwardProblem causal = problem_for(d, dv, 0);
    ForwardProblem p = causal;
    p.mask.left = 1023;
    add(name + " window", p);
    p = causal;
    p.element = Element::kFp16;
    add(name + " fp16 causal", p);
    p = causal;
    p.packed = true;
    add(name + " varlen causal", p);
    p = causal;
    p.softcap = 30;
    p.sink = true;
    add(name + " softcap sink causal", p);
    p = causal;
    p.alibi = true;
    add(name + " alibi causal", p);
    p = causal;
    p.dropout = semantics::make_dropout(0.1, 1, 0);
    add(name + " dropout causal", p);
    if (family != Family::kForwardMma) return;
    p.element = Element::kFp32;
    p.mask.left = 1023;
    p.packed = p.alibi = p.sink = true;
    p.softcap = 30;
    add(name + " fp32 everything", p);
  }
};

std::vector<Row> support_matrix() {
  std::vector<Row> rows;
  const Matrix sm90{rows, kSm90, Family::kForwardSm90};
  const int dims[][2] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
  for (const auto& [d, dv] : dims) {
    sm90.add_main(d, dv);
    // 96 and 192 have the tiles of their neighbours with options; this is a test of two minutes.
    if (d % 64 == 0 && dv != 192) sm90.add_options(d, dv);
  }
  for (const int d : {16, 32, 48, 80, 112, 160, 224}) {
    sm90.add("d" + std::to_string(d) + " causal", problem_for(d, d, 0));
  }
  for (const Arch& arch : {kSm80, kSm89, kSm90, kSm120}) {
    const Matrix mma{rows, arch, Family::kForwardMma};
    for (const int d : {64, 128, 256}) mma.add_main(d, d);
  }
  for (const Arch& arch : {kSm80, kSm90}) {
    const Matrix mma{rows, arch, Family::kForwardMma};
    for (const int d : {64, 128, 256}) mma.add_options(d, d);
    for (const int d : {16, 80, 96, 192}) {
      mma.add("d" + std::to_string(d) + " causal", problem_for(d, d, 0));
    }
    mma.add("d192/128 causal", problem_for(192, 128, 0));
  }
  return rows;
}

// Bytes that may spill: with softcap and three consumers the way for large scores does (4 seen). It
// stands in the loop, which is too long for sass_check.py.
int allowed_spills(const KernelSpec& spec) {
  return spec.family == Family::kForwardSm90 && spec.consumers == 3 && spec.softcap ? 8 : 0;
}

// The number before the words: "60 bytes spill stores" -> 60; -1 where they are missing.
int number_before(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  if (at == std::string::npos) return -1;
  size_t begin = at;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(text[begin - 1]))) --begin;
  return std::atoi(text.substr(begin, at - begin).c_str());
}

int spills_of(const Result& result) {
  return number_before(result.compiled.log, " bytes spill stores");
}
int registers_of(const Result& result) { return number_before(result.compiled.log, " registers"); }

Result compile_row(const Row& row) {
  Result result;
  const auto start = std::chrono::steady_clock::now();
  try {
    result.compiled = compile(row.spec, row.arch.name);
  } catch (const Error& error) {
    result.problem = error.what();
    return result;
  }
  result.ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const ForwardShape shape = shape_of(row.spec);
  const int spills = spills_of(result);
  const int registers = registers_of(result);
  if (spills < 0 || registers < 0) result.problem = "NVRTC's log has no registers and spills";
  if (spills > allowed_spills(row.spec)) result.problem = "spills";
  if (registers * shape.threads * shape.blocks > 65536) result.problem = "too many registers";
  if (shape.shared_bytes > row.arch.shared_bytes) result.problem = "too much shared memory";
  if (result.compiled.log.find("C75") != std::string::npos) {
    result.problem = "ptxas serialised wgmma:\n" + result.compiled.log;
  }
  return result;
}

std::vector<Result> compile_rows(const std::vector<Row>& rows) {
  std::vector<Result> results(rows.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < rows.size(); i = next++) results[i] = compile_row(rows[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

int print(const std::vector<Row>& rows, const std::vector<Result>& results) {
  std::printf("%-32s %-8s %7s %5s %9s %7s %6s %6s\n", "kernel", "arch", "threads", "keys",
              "registers", "shared", "spill", "ms");
  int failures = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const ForwardShape shape = shape_of(row.spec);
    std::printf("%-32s %-8s %7d %5d %9d %7d %6d %6.0f %s\n", row.name.c_str(), row.arch.name,
                shape.threads, row.spec.block_n, registers_of(results[i]), shape.shared_bytes,
                spills_of(results[i]), results[i].ms, results[i].problem.c_str());
    failures += !results[i].problem.empty();
  }
  std::printf("%zu passed, %d failed\n", rows.size() - static_cast<size_t>(failures), failures);
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  // NVRTC's own cache gives kernels without the log that names registers and spills.
  setenv("CUDA_CACHE_DISABLE", "1", 1);
  const std::string only = argc > 1 ? argv[1] : "";
  std::string why;
  if (find_nvrtc(&why) == nullptr) {
    std::printf("forward_compile: %s; ./dev test brings it\n", why.c_str());
    return 1;
  }
  std::printf("NVRTC: %s\n", nvrtc_path().c_str());
  if (only == "--where") return 0;
  std::vector<Row> rows;
  for (const Row& row : support_matrix()) {
    if ((row.name + " " + row.arch.name).find(only) != std::string::npos) rows.push_back(row);
  }
  const std::vector<Result> results = compile_rows(rows);
  for (size_t i = 0; argc > 2 && i < rows.size(); ++i) {
    if (rows[i].spec.family != Family::kForwardSm90) continue;
    std::ofstream(std::string(argv[2]) + "/" + std::to_string(i) + ".cubin", std::ios::binary)
        << results[i].compiled.cubin;
  }
  return print(rows, results) == 0 ? 0 : 1;
}
