/* Causal attention in C: plan once, see what was decided, run with your own scratch memory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <tilewise/tilewise.h>

enum { kBatch = 1, kLen = 512, kHeads = 4, kDim = 64, kCount = kBatch * kLen * kHeads * kDim };

static float q[kCount], k[kCount], v[kCount], out[kCount];

static void check(tw_status status) {
  if (status == TW_OK) return;
  fprintf(stderr, "%s: %s\n", tw_status_string(status), tw_last_error());
  exit(1);
}

int main(void) {
  for (int i = 0; i < kCount; ++i) {
    q[i] = (float)(i % 13) / 13 - 0.5f;
    k[i] = (float)(i % 17) / 17 - 0.5f;
    v[i] = (float)(i % 19) / 19 - 0.5f;
  }
  const int64_t size[4] = {kBatch, kLen, kHeads, kDim};
  tw_tensors tensors = TW_TENSORS_INIT;
  tensors.q = tw_tensor_4d(q, TW_F32, size);
  tensors.k = tw_tensor_4d(k, TW_F32, size);
  tensors.v = tw_tensor_4d(v, TW_F32, size);
  tensors.out = tw_tensor_4d(out, TW_F32, size);
  tw_options options = TW_OPTIONS_INIT;
  options.mask_right = 0; /* causal: no key after the row's own */

  tw_plan* plan = NULL;
  size_t bytes = 0;
  char text[1024];
  check(tw_plan_create(TW_FORWARD, &tensors, &options, &plan));
  check(tw_plan_describe(plan, text, sizeof text, NULL));
  check(tw_plan_workspace_bytes(plan, &bytes));

  /* 64-byte aligned, a multiple of 64 for aligned_alloc */
  void* workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
  check(tw_plan_run(plan, &tensors, workspace, bytes, NULL));
  free(workspace);
  tw_plan_destroy(plan);

  /* Row 0 sees key 0 alone, so its output is the first row of v. */
  printf("tilewise %s: out[0] = %g, v[0] = %g\n%s", tw_version(), out[0], v[0], text);
  return out[0] == v[0] ? 0 : 1;
}
