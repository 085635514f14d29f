// Runs one call of a Case, so that a tool can count what that call alone moves; and prints what the
// IO model says of it. tools/profile_bytes drives it.
//
//   once run BACKEND CASE SWEEP    sweeps SWEEP bytes of other memory, so that a cache of that size
//                                  holds nothing of the Case; then measured_call(), once
//   once model SCHEDULE CASE FAST CACHE CORES TILE_ROWS TILE_KEYS MATRIX
//                                  JSON: bytes with so much fast memory a core and cache; 0 rows or
//                                  keys: the model's own tile; MATRIX fp32, or same as the inputs
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "backend.h"
#include "case/case_tensors.h"
#include "case/device_mirror.h"
#include "device.h"
#include "tilewise/cost.hpp"
#include "tilewise/tilewise.hpp"

namespace tilewise {

// Tools count from the entry of this function to its end, by this name.
extern "C" __attribute__((noinline, visibility("default"))) void measured_call(
    const Plan& plan, const Tensors& tensors, void* workspace) {
  plan.run(tensors, workspace, plan.workspace_bytes());
}

namespace {

struct Workspace {
  explicit Workspace(size_t bytes) : data(::operator new (bytes, std::align_val_t{64})) {
    std::memset(data, 0, bytes);
  }
  ~Workspace() { ::operator delete (data, std::align_val_t{64}); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  void* data;
};

int sum_of(const std::vector<char>& bytes) {
  int sum = 0;
  for (size_t i = 0; i < bytes.size(); i += 64) sum += bytes[i];
  return sum;
}

// The inputs are in no cache: as much other memory has been written since.
int run_on_device(const CaseTensors& tensors, const Options& options, size_t sweep_bytes) {
  const Plan plan = make_plan(tensors.text().dir, as_device_tensors(tensors.forward()), options);
  DeviceMirror mirror(spans_of(tensors.forward()));
  const DeviceBuffer workspace(plan.workspace_bytes(), plan.problem().device.id);
  const DeviceBuffer other(sweep_bytes, plan.problem().device.id);
  mirror.upload();
  other.fill(1);
  measured_call(plan, mirror.on_device(tensors.forward()), workspace.data());
  synchronize(plan.problem().device.id);
  std::printf("%s\n", plan.describe().c_str());
  return 0;
}

int run_once(const std::string& backend, const Case& c, size_t sweep_bytes) {
  set_num_threads(1);
  const CaseTensors tensors(c, Poison::off);
  Options options = tensors.options();
  options.backend = backend;
  if (takes_device_memory(backend)) return run_on_device(tensors, options, sweep_bytes);
  const Tensors& call = c.dir == Direction::backward ? tensors.backward() : tensors.forward();
  if (c.dir == Direction::backward) forward(tensors.forward(), tensors.options());
  const Plan plan = make_plan(c.dir, call, options);
  const Workspace workspace(plan.workspace_bytes() + 1);
  const std::vector<char> other(sweep_bytes, 1);
  const int swept = sum_of(other);
  measured_call(plan, call, workspace.data);
  std::printf("%s\nswept: %d lines\n", plan.describe().c_str(), swept);
  return 0;
}

AttentionShape shape_of(const Case& c) {
  AttentionShape shape;
  shape.batch = c.b;
  shape.q_heads = c.hq;
  shape.kv_heads = c.hkv;
  shape.q_len = c.q;
  shape.kv_len = c.kv;
  shape.head_dim = c.d;
  shape.value_dim = c.dv;
  shape.dtype = c.dtype;
  shape.mask = c.mask;
  return shape;
}

// What is not asked for here, times, needs rates all the same.
int print_model(char** words) {
  ScheduleChoice choice;
  for (int i = 0; i <= static_cast<int>(Schedule::recompute_backward); ++i) {
    if (name_of(static_cast<Schedule>(i)) == words[0]) choice.schedule = static_cast<Schedule>(i);
  }
  MachineRoofs machine;
  machine.flops_per_s = machine.bytes_per_s = 1;
  machine.fast_bytes = std::atof(words[2]);
  machine.cache_bytes = std::atof(words[3]);
  machine.cores = std::atoll(words[4]);
  choice.tile_rows = std::atoll(words[5]);
  choice.tile_keys = std::atoll(words[6]);
  if (std::string(words[7]) == "fp32") choice.matrix_dtype = DType::f32;
  const Cost c = cost(shape_of(parse_case(words[1])), choice, machine);
  std::printf(R"({"schedule": "%s", "tile_rows": %lld, "tile_keys": %lld, )",
              std::string(name_of(choice.schedule)).c_str(), static_cast<long long>(c.tile_rows),
              static_cast<long long>(c.tile_keys));
  std::printf(R"("read_bytes": %.0f, "write_bytes": %.0f})"
              "\n",
              c.read_bytes, c.write_bytes);
  return 0;
}

}  // namespace

}  // namespace tilewise

int main(int argc, char** argv) {
  try {
    if (argc == 5 && std::string(argv[1]) == "run") {
      return tilewise::run_once(argv[2], tilewise::parse_case(argv[3]),
                                static_cast<size_t>(std::atoll(argv[4])));
    }
    if (argc == 10 && std::string(argv[1]) == "model") return tilewise::print_model(argv + 2);
    std::fprintf(stderr,
                 "usage: once run BACKEND CASE SWEEP\n"
                 "       once model SCHEDULE CASE FAST CACHE CORES TILE_ROWS TILE_KEYS MATRIX\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "once: %s\n", error.what());
  }
  return 2;
}
