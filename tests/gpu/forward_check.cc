// forward_check [--random N] [--seed S] [--only TEXT] [--no-tables] [--mma] [--compile-only]: runs
// the case tables below on GPU 0 and prints the failures. Exit status 1 when a case failed. With
// --mma they are cases of forward_mma, some of them in fp32 or with odd strides. With
// --compile-only it needs no GPU: it fills the kernel cache (TILEWISE_CACHE_DIR), so that a later
// run on a GPU machine only runs.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "forward_case.h"
#include "tilewise/tilewise.hpp"

namespace {

using namespace tilewise::gpu;
using namespace tilewise::gpu::testing;
using Cases = std::vector<ForwardCase>;

void add_regular(Cases& cases) {
  for (const int d : {64, 128, 256, 96, 192}) {
    for (const int64_t right : {-1, 0}) {
      for (const int n : {64, 128, 512, 1024}) {
        cases.push_back({.name = "regular",
                         .batch = 2,
                         .q_heads = 3,
                         .q = n,
                         .d = d,
                         .right = right,
                         .repeats = 3});
      }
    }
  }
  const std::string short_d128 = "order=0,consumers=3,block_n=64,k_stages=4,v_stages=4";
  for (const int64_t right : {-1, 0}) {
    cases.push_back({.name = "regular", .q = 1024, .right = right, .spec = short_d128});
    cases.push_back({.name = "regular", .q = 1024, .right = right, .spec = "schedule=0"});
    cases.push_back({.name = "regular",
                     .batch = 3,
                     .q_heads = 16,
                     .q = 1024,
                     .right = right,
                     .spec = "section=5"});
    cases.push_back({.name = "large", .batch = 1, .q_heads = 16, .q = 8192, .right = right});
    cases.push_back(
        {.name = "large", .batch = 1, .q_heads = 32, .q = 8192, .d = 64, .right = right});
    cases.push_back(
        {.name = "large", .batch = 1, .q_heads = 8, .q = 8192, .d = 256, .right = right});
  }
}

void add_layouts(Cases& cases) {
  for (const int d : {64, 96, 128, 192, 256}) {
    cases.push_back({.name = "index", .q = 192, .d = d, .data = Data::kIndexCoded});
    cases.push_back({.name = "index", .q = 192, .d = d, .right = 0, .data = Data::kIndexCoded});
    for (const Layout layout : {Layout::kBhsd, Layout::kStrided, Layout::kBroadcast}) {
      cases.push_back({.name = "layout",
                       .batch = 2,
                       .q_heads = 4,
                       .q = 200,
                       .d = d,
                       .right = 0,
                       .layout = layout});
    }
  }
  for (const int d : {1,   2,   7,   8,   15,  16,  24,  32,  40,  48,  72, 80,
                      100, 112, 120, 136, 144, 160, 176, 200, 224, 240, 255}) {
    cases.push_back({.name = "dims", .q = 150, .kv = 190, .d = d, .right = 0});
  }
  cases.push_back({.name = "many", .batch = 70000, .q_heads = 1, .q = 2, .kv = 3, .d = 16});
  cases.push_back({.name = "many", .q_heads = 70000, .kv_heads = 35000, .q = 2, .kv = 3, .d = 16});
  cases.push_back(
      {.name = "many", .batch = 70000, .q_heads = 1, .q = 2, .d = 16, .layout = Layout::kOdd});
  const int pairs[][2] = {{192, 128}, {128, 192}, {64, 128}, {128, 64}, {64, 256},
                          {256, 64},  {32, 96},   {96, 32},  {16, 256}, {200, 72}};
  for (const auto& [d, dv] : pairs) {
    cases.push_back({.name = "value_dim", .q = 333, .kv = 260, .d = d, .dv = dv, .right = 0});
    cases.push_back({.name = "value_dim", .q = 333, .kv = 260, .d = d, .dv = dv});
  }
}

void add_masks(Cases& cases) {
  for (const int d : {64, 128, 256}) {
    for (const int n : {1, 63, 65, 127, 200, 448, 500, 1000}) {
      cases.push_back({.name = "ragged", .q = n, .d = d});
      cases.push_back({.name = "ragged", .q = n, .d = d, .right = 0});
    }
    for (const int kv : {1, 3, 100, 129, 700}) {
      for (const int alignment : {0, 1}) {
        cases.push_back(
            {.name = "cross", .q = 300, .kv = kv, .d = d, .right = 0, .alignment = alignment});
      }
    }
    for (const int64_t offset : {-1000, -130, -64, -5, 7, 100, 128, 1000}) {
      cases.push_back({.name = "offset",
                       .q = 300,
                       .kv = 260,
                       .d = d,
                       .right = 0,
                       .alignment = 2,
                       .offset = offset});
    }
    const int64_t windows[][2] = {{0, 0},   {5, 0},   {63, 0},  {64, 0},  {100, 0},    {200, 50},
                                  {-1, 30}, {17, -1}, {0, 300}, {500, 0}, {1000, 1000}};
    for (const auto& [left, right] : windows) {
      cases.push_back(
          {.name = "window", .q = 700, .kv = 640, .d = d, .left = left, .right = right});
    }
    cases.push_back({.name = "window",
                     .q = 300,
                     .kv = 100,
                     .d = d,
                     .left = 10,
                     .right = 10,
                     .alignment = 2,
                     .offset = 400});
    for (const Element element : {Element::kBf16, Element::kFp16}) {
      cases.push_back(
          {.name = "one key", .batch = 3, .q = 200, .kv = 1, .d = d, .element = element});
      cases.push_back({.name = "one key",
                       .batch = 3,
                       .q_heads = 90,
                       .q = 200,
                       .d = d,
                       .left = 0,
                       .right = 0,
                       .element = element});
    }
    cases.push_back({.name = "empty", .q = 100, .kv = 0, .d = d});
    cases.push_back({.name = "empty", .q = 100, .kv = 0, .d = d, .right = 0, .sink = true});
  }
}

void add_data(Cases& cases) {
  for (const int d : {64, 128, 256}) {
    for (const Data data : {Data::kLarge, Data::kLateOutlier, Data::kVeryNegative, Data::kZeros,
                            Data::kNanKey, Data::kNanValue, Data::kInfQuery}) {
      for (const int64_t right : {-1, 0}) {
        for (const Element element : {Element::kBf16, Element::kFp16}) {
          if (element == Element::kFp16 && data == Data::kVeryNegative) continue;
          cases.push_back({.name = "data",
                           .batch = 2,
                           .q = 1024,
                           .d = d,
                           .right = right,
                           .element = element,
                           .data = data});
        }
      }
    }
  }
}

void add_options(Cases& cases) {
  for (const int d : {64, 128, 192, 256}) {
    for (const int64_t right : {-1, 0}) {
      const ForwardCase base{.name = "options",
                             .q_heads = 6,
                             .kv_heads = 2,
                             .q = 520,
                             .kv = 600,
                             .d = d,
                             .right = right};
      ForwardCase c = base;
      c.element = Element::kFp16;
      cases.push_back(c);
      c = base;
      c.softcap = 5;
      cases.push_back(c);
      c = base;
      c.alibi = true;
      cases.push_back(c);
      c = base;
      c.sink = true;
      cases.push_back(c);
      c = base;
      c.dropout = 0.2;
      cases.push_back(c);
      c = base;
      c.lse = false;
      cases.push_back(c);
      c = base;
      c.softcap = 10;
      c.alibi = c.sink = true;
      c.dropout = 0.1;
      c.left = 300;
      cases.push_back(c);
    }
  }
  for (const int kv_heads : {1, 7}) {
    cases.push_back(
        {.name = "gqa", .batch = 2, .q_heads = 7, .kv_heads = kv_heads, .q = 256, .right = 0});
  }
}

void add_packed(Cases& cases) {
  for (const int d : {64, 128, 192, 256}) {
    for (const int64_t right : {-1, 0}) {
      cases.push_back({.name = "packed",
                       .q_heads = 4,
                       .kv_heads = 2,
                       .d = d,
                       .right = right,
                       .q_lens = {100, 0, 257, 64, 1, 500}});
      cases.push_back({.name = "packed",
                       .q_heads = 2,
                       .d = d,
                       .right = right,
                       .q_lens = {100, 30, 257, 0, 64},
                       .kv_lens = {200, 0, 100, 77, 64}});
      cases.push_back({.name = "packed",
                       .q_heads = 2,
                       .d = d,
                       .right = right,
                       .data = Data::kNanKey,
                       .q_lens = {100, 130, 200}});
    }
    std::vector<int> many;
    for (int i = 0; i < 70; ++i) many.push_back(i * 37 % 150);
    cases.push_back(
        {.name = "packed", .q_heads = 2, .d = d, .left = 40, .right = 0, .q_lens = many});
  }
}

bool selected(const ForwardCase& c, const std::string& only) {
  return only.empty() || (c.name + ": " + describe(c)).find(only) != std::string::npos;
}

ForwardCase random_case(std::mt19937_64& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  const auto pick = [&](std::initializer_list<int> list) {
    return *(list.begin() + below(list.size()));
  };
  ForwardCase c{.name = "random"};
  c.batch = 1 + below(3);
  c.kv_heads = 1 + below(3);
  c.q_heads = c.kv_heads * (1 + below(4));
  c.q = 1 + below(pick({8, 80, 300, 700}));
  c.kv = below(4) == 0 ? c.q : below(pick({8, 80, 300, 900}));
  c.d = pick({64, 64, 96, 128, 128, 128, 192, 256, 17, 40, 80, 100, 160, 250});
  c.dv = below(5) ? c.d : pick({64, 128, 33, 96, 256});
  if (below(2)) c.right = below(2) ? 0 : below(200);
  if (below(3) == 0) c.left = below(300);
  c.alignment = below(3);
  c.offset = below(600) - 300;
  c.element = below(3) ? Element::kBf16 : Element::kFp16;
  c.layout = static_cast<Layout>(below(4));  // kOdd: --mma
  c.data = below(3) ? Data::kNormal : static_cast<Data>(pick({1, 2, 4}));
  if (below(4) == 0) c.softcap = 1 + below(50);
  if (below(5) == 0) c.dropout = 0.05 * (1 + below(10));
  c.alibi = below(5) == 0;
  c.sink = below(5) == 0;
  if (below(3) == 0 && c.layout != Layout::kBroadcast) {
    for (int i = 1 + below(6); i > 0; --i) {
      c.q_lens.push_back(below(4) ? below(300) : 0);
      c.kv_lens.push_back(below(4) ? below(400) : 0);
    }
    c.q_lens.push_back(1 + below(100));
    c.kv_lens.push_back(1 + below(100));
    if (c.layout == Layout::kBhsd) c.layout = Layout::kBshd;
  }
  if (c.d % 16 == 0 && c.d <= 128 && c.dv <= 128 && c.d > 64 && below(2)) {
    c.spec = "order=0,consumers=3,block_n=64,k_stages=4,v_stages=4,q_buffers=2";
  }
  return c;
}

// The same cases for forward_mma: every third in fp32, every fourth plain layout with odd strides.
void to_mma(Cases& cases) {
  std::erase_if(cases, [](const ForwardCase& c) { return !c.spec.empty(); });
  for (size_t i = 0; i < cases.size(); ++i) {
    ForwardCase& c = cases[i];
    c.spec = "family=1";
    if (i % 3 == 0 && c.element == Element::kBf16) c.element = Element::kFp32;
    if (i % 4 == 1 && c.layout == Layout::kBshd) c.layout = Layout::kOdd;
  }
}

// Fills the disk cache with every kernel of the cases, on all cores.
void compile_all(const Cases& cases, const std::string& only) {
  std::map<std::string, KernelSpec> specs;
  for (const ForwardCase& c : cases) {
    if (!selected(c, only)) continue;
    const KernelSpec spec = plan_case(c).spec;
    specs.emplace(text_of(spec), spec);
  }
  std::vector<KernelSpec> list;
  for (const auto& [text, spec] : specs) list.push_back(spec);
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < list.size(); i = next++) {
        try {
          find_cubin(list[i], "sm_90a");
        } catch (const tilewise::Error&) {
          // run_case() meets it again and reports it.
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%zu kernels for %zu cases\n", list.size(), cases.size());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  int random_count = 0;
  uint64_t seed = 1;
  std::string only;
  bool tables = true;
  bool mma = false;
  bool compile_only = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--random") random_count = std::atoi(argv[++i]);
    if (word == "--seed") seed = std::strtoull(argv[++i], nullptr, 10);
    if (word == "--only") only = argv[++i];
    if (word == "--no-tables") tables = false;
    if (word == "--mma") mma = true;
    if (word == "--compile-only") compile_only = true;
  }
  Cases cases;
  if (tables) {
    add_regular(cases);
    add_layouts(cases);
    add_masks(cases);
    add_data(cases);
    add_options(cases);
    add_packed(cases);
  }
  std::mt19937_64 random(seed);
  for (int i = 0; i < random_count; ++i) cases.push_back(random_case(random));
  if (mma) to_mma(cases);
  compile_all(cases, only);
  if (compile_only) return 0;
  const Driver& d = driver();
  CUdevice device = 0;
  CUcontext context = nullptr;
  check_cuda(d.cuDeviceGet(&device, 0), "cuDeviceGet");
  check_cuda(d.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check_cuda(d.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  int passed = 0;
  double worst = 0;
  double worst_lse = 0;
  std::vector<std::string> failures;
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string text = cases[i].name + ": " + describe(cases[i]);
    if (!selected(cases[i], only)) continue;
    if (std::getenv("FORWARD_CHECK_VERBOSE") != nullptr) {
      std::fprintf(stderr, "%s\n", text.c_str());
    }
    const Outcome outcome = run_case(cases[i], seed + i);
    if (i % 100 == 99) {
      std::printf("%zu of %zu cases\n", i + 1, cases.size());
      std::fflush(stdout);
    }
    passed += outcome.passed;
    if (outcome.passed) {
      worst = std::max(worst, outcome.worst);
      worst_lse = std::max(worst_lse, outcome.worst_lse);
    } else {
      failures.push_back(text + "\n    " + outcome.message + " (" + std::to_string(outcome.worst) +
                         " of the tolerance)");
      std::printf("FAILED %s\n", failures.back().c_str());
      std::fflush(stdout);
    }
  }
  std::printf("%d passed, %zu failed; worst error %.3f of the tolerance, lse %.3f (seed %llu)\n",
              passed, failures.size(), worst, worst_lse, static_cast<unsigned long long>(seed));
  return failures.empty() ? 0 : 1;
} catch (const tilewise::Error& error) {
  std::printf("stopped: %s\n", error.what());
  return 2;
}
