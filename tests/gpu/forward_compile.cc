// Compiles the forward kernels of the support matrix with NVRTC, without a GPU, and fails on what
// ptxas must not do: spills, serialised wgmma (C75xx), ignored setmaxnreg. Prints the register and
// shared memory table of docs/forward-sm90.md. Arguments: text that the names must contain, and a
// directory for the cubins (both optional).
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "launch.h"
#include "shape.h"
#include "tilewise/tilewise.hpp"

namespace {

using namespace tilewise;
using namespace tilewise::gpu;

struct Row {
  std::string name;
  KernelSpec spec;
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

void add(std::vector<Row>& rows, const std::string& name, const ForwardProblem& problem) {
  rows.push_back({name, plan_forward(problem, DeviceFacts{}).spec});
}

std::vector<Row> support_matrix() {
  std::vector<Row> rows;
  const int dims[][2] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
  for (const auto& [d, dv] : dims) {
    const std::string name = "d" + std::to_string(d) + "/" + std::to_string(dv);
    add(rows, name + " full", problem_for(d, dv, -1));
    const ForwardProblem causal = problem_for(d, dv, 0);
    add(rows, name + " causal", causal);
    ForwardProblem p = causal;
    p.mask.left = 1023;
    add(rows, name + " window", p);
    p = causal;
    p.element = Element::kFp16;
    add(rows, name + " fp16 causal", p);
    p = causal;
    p.packed = true;
    add(rows, name + " varlen causal", p);
    p = causal;
    p.softcap = 30;
    p.sink = true;
    add(rows, name + " softcap sink causal", p);
    p = causal;
    p.alibi = true;
    add(rows, name + " alibi causal", p);
    p = causal;
    p.dropout = semantics::make_dropout(0.1, 1, 0);
    add(rows, name + " dropout causal", p);
  }
  for (const int d : {16, 32, 48, 80, 112, 160, 224}) {
    add(rows, "d" + std::to_string(d) + " causal", problem_for(d, d, 0));
  }
  return rows;
}

// Bytes that may spill at item edges: d 256 holds 128 registers of O, and with three consumers the
// K warp has 32 registers for everything. sass_check.py shows that no step of a loop touches them.
int allowed_spills(const KernelSpec& spec) {
  if (spec.v_dim > 192) return 200;
  return spec.consumers == 3 ? 24 : 0;
}

// "60 bytes spill stores, 92 bytes spill loads" -> 60.
int number_before(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  if (at == std::string::npos) return -1;
  size_t begin = at;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(text[begin - 1]))) --begin;
  return std::atoi(text.substr(begin, at - begin).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  int failures = 0;
  int index = 0;
  std::printf("%-28s %7s %7s %6s %6s %9s\n", "kernel", "threads", "shared", "spill", "ms", "");
  const std::string only = argc > 1 ? argv[1] : "";
  for (const Row& row : support_matrix()) {
    if (row.name.find(only) == std::string::npos) continue;
    const auto start = std::chrono::steady_clock::now();
    Compiled compiled;
    try {
      compiled = compile(row.spec, "sm_90a");
    } catch (const Error& error) {
      std::printf("%-28s FAILED\n%s\n", row.name.c_str(), error.what());
      return 1;
    }
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
    const ForwardShape shape = shape_of(row.spec);
    const int spills = number_before(compiled.log, " bytes spill stores");
    const bool warned = compiled.log.find("C75") != std::string::npos;
    const bool bad = spills > allowed_spills(row.spec) || warned;
    failures += bad;
    std::printf("%-28s %7d %7d %6d %6.0f %s\n", row.name.c_str(), shape.threads, shape.shared_bytes,
                spills, ms.count(), warned ? "C75xx" : (bad ? "SPILLS" : ""));
    std::fflush(stdout);
    if (warned) std::printf("%s\n", compiled.log.c_str());
    if (argc > 2) {
      std::ofstream(std::string(argv[2]) + "/" + std::to_string(index++) + ".cubin",
                    std::ios::binary)
          << compiled.cubin;
    }
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
