/* Tilewise, the C ABI: exact attention that never stores the q_len x kv_len matrix.
 *
 *   out = softmax(mask(softcap(scale * q k^T) - alibi)) v        and its gradients
 *
 * Every function returns a tw_status; tw_last_error() says in words what was wrong with the last
 * failing call of this thread. Nothing is thrown, printed or aborted. Structs that may grow start
 * with their own size: fill them with their _INIT macro, then set fields by name. The C++ API
 * (tilewise.hpp) describes each tensor and option; both run the same checks.
 */
#ifndef TILEWISE_H_
#define TILEWISE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TW_API __attribute__((visibility("default")))
#else
#define TW_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tw_status {
  TW_OK = 0,
  TW_INVALID_ARGUMENT = 1,
  TW_UNSUPPORTED = 2,
  TW_WORKSPACE_TOO_SMALL = 3,
  TW_OUT_OF_MEMORY = 4,
  TW_DEVICE_ERROR = 5,
  TW_INTERNAL = 6,
  TW_STATUS_MAX = 0x7fffffff
} tw_status;

typedef enum tw_dtype { TW_NONE = 0, TW_F32 = 1, TW_BF16 = 2, TW_F16 = 3, TW_I32 = 4 } tw_dtype;
typedef enum tw_device_type { TW_CPU = 1, TW_CUDA = 2 } tw_device_type;
/* _MAX makes the enum as wide as an int, so that a wrong value can be looked at and refused. */
typedef enum tw_direction {
  TW_FORWARD = 0,
  TW_BACKWARD = 1,
  TW_DIRECTION_MAX = 0x7fffffff
} tw_direction;
typedef enum tw_alignment { TW_BOTTOM_RIGHT = 0, TW_TOP_LEFT = 1, TW_AT_OFFSET = 2 } tw_alignment;
typedef enum tw_determinism { TW_ANY = 0, TW_BITWISE = 1 } tw_determinism;

/* A view of memory; sizes and strides in elements, innermost stride 1. All zero = not given. */
typedef struct tw_tensor {
  void* data;
  int32_t dtype;       /* tw_dtype */
  int32_t device_type; /* tw_device_type */
  int32_t device_id;
  int32_t ndim;
  int64_t size[4];
  int64_t stride[4];
} tw_tensor;

/* b batch, s rows, t keys, h query heads, g key heads (h % g == 0), d head_dim, dv value_dim.
 * With cu_seqlens: q, out [total_q, h, d], k, v [total_kv, g, d], lse [h, total_q]. */
typedef struct tw_tensors {
  size_t struct_bytes;
  tw_tensor q;             /* [b, s, h, d] */
  tw_tensor k;             /* [b, t, g, d] */
  tw_tensor v;             /* [b, t, g, dv] */
  tw_tensor out;           /* [b, s, h, dv] written by forward, read by backward */
  tw_tensor lse;           /* [b, h, s] f32, natural log; optional in forward, read by backward */
  tw_tensor d_out;         /* [b, s, h, dv] backward */
  tw_tensor d_lse;         /* [b, h, s] f32, backward, optional */
  tw_tensor d_q;           /* [b, s, h, d] backward: any subset of the four gradients */
  tw_tensor d_k;           /* [b, t, g, d] */
  tw_tensor d_v;           /* [b, t, g, dv] */
  tw_tensor d_sink;        /* [h] f32 */
  tw_tensor alibi_slopes;  /* [h] or [b, h] f32 */
  tw_tensor sink;          /* [h] f32 */
  tw_tensor cu_seqlens_q;  /* [b + 1] i32 */
  tw_tensor cu_seqlens_kv; /* [b + 1] i32 */
} tw_tensors;

typedef struct tw_options {
  size_t struct_bytes;
  int64_t mask_left;  /* keys before the diagonal, -1 = all */
  int64_t mask_right; /* keys after the diagonal, -1 = all; causal = 0 */
  int64_t mask_offset;
  int32_t mask_alignment; /* tw_alignment */
  int32_t determinism;    /* tw_determinism */
  int32_t has_scale;      /* 0: scale is 1 / sqrt(head_dim) */
  uint32_t dropout_offset;
  double scale;
  double softcap; /* 0 = off */
  double dropout; /* probability in [0, 1) */
  uint64_t seed;
  int64_t max_q_len;   /* packed batches; 0 = total_q */
  int64_t max_kv_len;  /* packed batches; 0 = total_kv */
  const char* backend; /* NULL or "" chooses */
} tw_options;

#ifdef __cplusplus
#define TW_TENSORS_INIT                                                            \
  {                                                                                \
    sizeof(tw_tensors), {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {} \
  }
#else
#define TW_TENSORS_INIT \
  { .struct_bytes = sizeof(tw_tensors) }
#endif
#define TW_OPTIONS_INIT \
  { sizeof(tw_options), -1, -1, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, 0, NULL }

/* Row-major view of memory [d0, d1, d2, d3], as every dense attention tensor is viewed. */
static inline tw_tensor tw_tensor_4d(void* data, tw_dtype dtype, const int64_t size[4]) {
  tw_tensor tensor;
  tensor.data = data;
  tensor.dtype = (int32_t)dtype;
  tensor.device_type = TW_CPU;
  tensor.device_id = 0;
  tensor.ndim = 4;
  int64_t stride = 1;
  for (int dim = 3; dim >= 0; --dim) {
    tensor.size[dim] = size[dim];
    tensor.stride[dim] = stride;
    stride *= size[dim] > 0 ? size[dim] : 1;
  }
  return tensor;
}

typedef struct tw_plan tw_plan; /* opaque */

/* Checks the call and decides how to run it. Only shapes, dtypes, strides and devices are read. */
TW_API tw_status tw_plan_create(tw_direction direction, const tw_tensors* tensors,
                                const tw_options* options, tw_plan** plan);
TW_API void tw_plan_destroy(tw_plan* plan); /* NULL is fine */
TW_API tw_status tw_plan_workspace_bytes(const tw_plan* plan, size_t* bytes);
/* Runs on tensors of the planned shapes. workspace: 64-byte aligned. Nothing is allocated. stream:
 * a CUstream on a GPU, ignored on a CPU. */
TW_API tw_status tw_plan_run(const tw_plan* plan, const tw_tensors* tensors, void* workspace,
                             size_t workspace_bytes, void* stream);
/* Text functions write at most `capacity` bytes with the final 0 and store in *needed (may be NULL)
 * how many the whole text takes. */
TW_API tw_status tw_plan_describe(const tw_plan* plan, char* text, size_t capacity, size_t* needed);
/* One line for each backend: "cpu: available" or "gpu: reason; reason". */
TW_API tw_status tw_why_not(tw_direction direction, const tw_tensors* tensors,
                            const tw_options* options, char* text, size_t capacity, size_t* needed);

/* Plan and run in one call, with a plan cache; options may be NULL. */
TW_API tw_status tw_forward(const tw_tensors* tensors, const tw_options* options, void* stream);
TW_API tw_status tw_backward(const tw_tensors* tensors, const tw_options* options, void* stream);

/* A partial result over some of the keys: out f32, lse f32. */
typedef struct tw_partial {
  tw_tensor out;
  tw_tensor lse;
} tw_partial;
/* lse may be NULL. out may be f32, bf16 or f16 and may be the memory of one of the parts. */
TW_API tw_status tw_merge(const tw_partial* parts, size_t count, const tw_tensor* out,
                          const tw_tensor* lse);

/* Threads of the CPU backend, counting the caller; 0 restores the default. */
TW_API tw_status tw_set_num_threads(int threads);
TW_API int tw_num_threads(void);
/* Runs CPU work on the caller's pool: run(context, workers, body, argument) must call
 * body(argument, w) once for every w in [0, workers) and return when all have. NULL restores the
 * built-in pool. */
TW_API tw_status tw_set_executor(void (*run)(void* context, int workers,
                                             void (*body)(void* argument, int worker),
                                             void* argument),
                                 void* context);

/* Text of this thread's last failing call; "" when none failed. Valid until its next call. */
TW_API const char* tw_last_error(void);
TW_API const char* tw_status_string(tw_status status);
TW_API const char* tw_version(void); /* "0.1.0" */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_H_ */
