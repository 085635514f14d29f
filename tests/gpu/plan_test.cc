// Which GPU kernel is planned, what the plan says of it, and that every tile fits every GPU. Needs
// neither GPU nor NVRTC.
#include <cstdio>
#include <string>

#include "launch.h"
#include "shape.h"
#include "tilewise/tilewise.hpp"

namespace {

using namespace tilewise::gpu;

int failures = 0;

void expect(bool condition, const std::string& what) {
  if (condition) return;
  std::printf("FAILED: %s\n", what.c_str());
  ++failures;
}

void expect_begins(const std::string& text, const std::string& words) {
  expect(text.rfind(words, 0) == 0, "\"" + text + "\" should begin with \"" + words + "\"");
}

ForwardProblem problem_of(int head_dim, int value_dim) {
  ForwardProblem p;
  p.batch = 2;
  p.q_heads = p.kv_heads = 4;
  p.q_len = p.kv_len = 1000;
  p.head_dim = head_dim;
  p.value_dim = value_dim;
  p.q = p.k = {4000 * 256, 1024, 256};
  p.v = p.out = {4000 * 256, 1024, 256};
  return p;
}

void names_the_kernel_and_the_reason() {
  const DeviceFacts hopper;
  const ForwardProblem plain = problem_of(64, 64);
  expect_begins(plan_forward(plain, hopper).why, "forward_sm90; 4 x 64 query rows, 64 keys");
  ForwardProblem p = plain;
  p.k.row = 1023;
  expect_begins(plan_forward(p, hopper).why,
                "forward_mma because k rows are not 16-byte aligned, as TMA needs them; 2 x 64");
  p = plain;
  p.v.row = 0;
  expect_begins(plan_forward(p, hopper).why, "forward_mma because v rows have stride 0; ");
  p = plain;
  p.q.head = int64_t{1} << 40;
  expect_begins(plan_forward(p, hopper).why,
                "forward_mma because q has a stride that TMA cannot take; ");
  p = plain;
  p.aligned = false;
  expect_begins(plan_forward(p, hopper).why,
                "forward_mma because a tensor does not start at a multiple of 16 bytes; ");
  p = plain;
  p.element = Element::kFp32;
  expect_begins(plan_forward(p, hopper).why, "forward_mma because fp32 has no wgmma; ");
  DeviceFacts ada;
  ada.major = 8;
  ada.minor = 9;
  ada.shared_bytes = 101376;
  expect_begins(plan_forward(p, ada).why,
                "forward_mma because the GPU has compute capability 8.9, not 9.0 and fp32 has no "
                "wgmma; ");
}

void refuses_only_what_no_kernel_takes() {
  DeviceFacts facts;
  ForwardProblem p = problem_of(64, 64);
  expect(why_not_forward(p, facts).empty(), "a plain problem is taken");
  p.k.row = 1023;
  p.element = Element::kFp32;
  expect(why_not_forward(p, facts).empty(), "odd strides and fp32 are taken");
  facts.major = 7;
  p.q_len = int64_t{1} << 29;
  p.head_dim = 257;
  const std::vector<std::string> reasons = why_not_forward(p, facts);
  expect(reasons == std::vector<std::string>{"compute capability 7.0: the kernels need 8.0 or more",
                                             "head_dim and value_dim go up to 256",
                                             "sequences go up to 2^29 rows"},
         "a problem with three faults has three reasons");
}

// Every head size, with and without options, on the GPUs that have least and most shared memory.
void every_tile_fits() {
  for (const int shared_bytes : {101376, 166912, 232448}) {
    DeviceFacts facts;
    facts.shared_bytes = shared_bytes;
    for (int d = 1; d <= 256; ++d) {
      for (const Element element : {Element::kBf16, Element::kFp16, Element::kFp32}) {
        for (const bool options : {false, true}) {
          ForwardProblem p = problem_of(d, options ? 257 - d : d);
          p.element = element;
          if (options) p.softcap = 30;
          const KernelSpec spec = plan_family(p, facts, Family::kForwardMma).spec;
          expect(spec.block_n >= (element == Element::kFp32 ? 8 : 16) &&
                     shape_of(spec).shared_bytes <= shared_bytes,
                 "d " + std::to_string(d) + " in " + std::to_string(shared_bytes) + " bytes");
        }
      }
    }
  }
}

// Before anything touches a GPU: this test has none.
void refuses_pointers_less_aligned_than_planned() {
  const ForwardPlan plan = plan_forward(problem_of(64, 64), DeviceFacts{});
  alignas(16) static char memory[32];
  ForwardViews views;
  views.q = views.v = views.out = memory;
  views.k = memory + 2;
  std::string message = "no error";
  try {
    run_forward(plan, Kernel{}, views, nullptr, nullptr);
  } catch (const tilewise::Error& error) {
    message = error.what();
  }
  expect(message ==
             "tilewise::forward: k does not start at a multiple of 16 bytes, as it did when the "
             "plan chose forward_sm90; plan with this tensor",
         "got: " + message);
}

}  // namespace

int main() {
  names_the_kernel_and_the_reason();
  refuses_only_what_no_kernel_takes();
  every_tile_fits();
  refuses_pointers_less_aligned_than_planned();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
