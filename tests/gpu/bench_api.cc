// A C surface over plan_forward and run_forward for bench/peers/gpu_forward.py (ctypes), with the
// spec's fields open to change, so that tiles can be compared in one process with other libraries.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "launch.h"
#include "tilewise/tilewise.hpp"

namespace {

using namespace tilewise::gpu;

struct Handle {
  ForwardPlan plan;
  const Kernel* kernel;
};

thread_local std::string last_error;

void set_field(int& field, int value) { field = value; }
template <class Enum>
void set_field(Enum& field, int value) {
  field = static_cast<Enum>(value);
}

// "consumers=3,block_n=64,section=16" over the planned spec; returns the section or -1.
int change_spec(KernelSpec& spec, const std::string& changes) {
  int section = -1;
  size_t begin = 0;
  while (begin < changes.size()) {
    const size_t end = std::min(changes.find(',', begin), changes.size());
    const std::string word = changes.substr(begin, end - begin);
    const size_t equal = word.find('=');
    const std::string name = word.substr(0, equal);
    const int value = std::atoi(word.c_str() + equal + 1);
    if (name == "section") section = value;
    for_each_field(spec, [&](const char* field, auto& slot) {
      if (name == field) set_field(slot, value);
    });
    begin = end + 1;
  }
  return section;
}

}  // namespace

extern "C" {

#define TW_BENCH_API __attribute__((visibility("default")))

struct BenchProblem {
  int64_t batch, q_heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  int64_t left, right;
  int element, packed;
  int64_t total_q, total_kv;
  double scale, softcap;
  int64_t q_strides[3], k_strides[3], v_strides[3], out_strides[3];  // batch, row, head
};

TW_BENCH_API const char* bench_error() { return last_error.c_str(); }

TW_BENCH_API void* bench_plan(const BenchProblem* b, const char* changes) try {
  ForwardProblem p;
  p.element = static_cast<Element>(b->element);
  p.batch = b->batch;
  p.q_heads = b->q_heads;
  p.kv_heads = b->kv_heads;
  p.q_len = b->q_len;
  p.kv_len = b->kv_len;
  p.total_q = b->total_q;
  p.total_kv = b->total_kv;
  p.head_dim = b->head_dim;
  p.value_dim = b->value_dim;
  p.packed = b->packed != 0;
  p.mask = {b->left, b->right, 0, 0};
  p.scale = b->scale;
  p.softcap = b->softcap;
  const auto strides = [](const int64_t* s) { return Strides{s[0], s[1], s[2]}; };
  p.q = strides(b->q_strides);
  p.k = strides(b->k_strides);
  p.v = strides(b->v_strides);
  p.out = strides(b->out_strides);
  const DeviceFacts facts = facts_of(0);
  const bool named = std::string(changes).find("family=1") != std::string::npos;
  ForwardPlan plan = named ? plan_family(p, facts, Family::kForwardMma) : plan_forward(p, facts);
  const int section = change_spec(plan.spec, changes);
  plan = plan_with_spec(p, facts, plan.spec, section > 0 ? section : plan.section_heads);
  return new Handle{plan, &load_kernel(plan.spec, 0)};
} catch (const std::exception& error) {
  last_error = error.what();
  return nullptr;
}

TW_BENCH_API int bench_run(void* handle, const void* q, const void* k, const void* v, void* out,
                           const int* q_starts, const int* kv_starts, void* workspace,
                           void* stream) try {
  const Handle& h = *static_cast<Handle*>(handle);
  ForwardViews views;
  views.q = q;
  views.k = k;
  views.v = v;
  views.out = out;
  views.q_starts = q_starts;
  views.kv_starts = kv_starts;
  run_forward(h.plan, *h.kernel, views, workspace, static_cast<CUstream>(stream));
  return 0;
} catch (const std::exception& error) {
  last_error = error.what();
  return 1;
}

TW_BENCH_API void bench_describe(void* handle, char* text, int length) {
  const Handle& h = *static_cast<Handle*>(handle);
  std::snprintf(text, static_cast<size_t>(length), "%s | %s", h.plan.why.c_str(),
                text_of(h.plan.spec).c_str());
}

TW_BENCH_API void bench_free(void* handle) { delete static_cast<Handle*>(handle); }

}  // extern "C"
