// Run-time values of one launch, shared by host and device; includes nothing. A kernel receives
// the struct by value as its only parameter.
#pragma once

#include "semantics/mask.h"
#include "semantics/philox.h"

namespace tilewise::gpu {

// The 128-byte descriptor that cuTensorMapEncodeTiled fills.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

// A tensor by pointer and strides in elements, for kernels and stores without TMA.
struct RowSource {
  void* data;
  long long batch;
  long long row;
  long long head;
  int columns;  // head_dim or value_dim
  int aligned;  // 1: data and strides are multiples of 16 bytes
};

// cap * tanh(y) = y (term[0] + term[1] y^2 + ... + term[4] y^8) for |y| <= kSmallSoftcap, with a
// relative error of 7e-8 (minimax) and 1.7e-7 in float.
constexpr float kSmallSoftcap = 0.6f;
struct SoftcapTerms {
  float cap;
  float term[5];
  // The exponent of a score s that is not scaled yet is s (tiny[0] + tiny[1] s^2 + tiny[2] s^4)
  // where s^2 <= tiny_limit (launch.cc: |y| <= 0.3, relative error 1.2e-6). -1: use it nowhere.
  float tiny_limit;
  float tiny[3];
};

// Hands out units in a dynamic schedule. It lies in the caller's workspace, which nobody clears: a
// memset would be a second node in front of every kernel. It belongs to a launch when it carries
// the launch's number; the first CTA to come writes that, the last one to go takes it away.
struct alignas(16) UnitCounter {
  unsigned next;
  unsigned launch[3];  // never the same twice in a process, and never 0
};

// Rows of a tensor are addressed by two TMA coordinates, (row, slab). Plain tensors: row inside
// the sequence, slab = batch. Packed tensors: row = limit - length + i, slab = start + length,
// so that rows past the end of a sequence fall outside the map (docs/forward-sm90.md, "Packed").
struct ForwardArgs {
  TensorMap q;    // [batch, q_heads, q_len, head_dim], box 64 rows x 64 columns
  TensorMap k;    // [batch, kv_heads, kv_len, head_dim], box block_n x 64
  TensorMap v;    // [batch, kv_heads, kv_len, value_dim], box block_n x 64
  TensorMap out;  // [batch, q_heads, q_len, value_dim], box 16 x 64

  RowSource q_rows;  // forward_mma: the same tensors as the maps
  RowSource k_rows;
  RowSource v_rows;
  RowSource out_rows;  // and forward_sm90 with direct stores

  float* lse;            // [batch, q_heads, q_len] or packed [q_heads, total_q]
  long long lse_batch;   // elements between batches (unused when packed)
  long long lse_head;    // elements between heads
  const int* q_starts;   // packed: cu_seqlens of q, [batch + 1]
  const int* kv_starts;  // packed: cu_seqlens of k and v, [batch + 1]
  UnitCounter* counter;  // dynamic schedule
  unsigned launch[3];    // this launch's number

  const float* slopes;     // ALiBi slopes [q_heads] or [batch, q_heads]
  long long slopes_batch;  // elements between batches, 0 when shared
  const float* sink;       // sink logits [q_heads]
  semantics::Dropout dropout;
  semantics::MaskRule mask;

  float scale_log2;   // scale * log2(e); log2(e) when softcap or ALiBi scale the scores first
  float score_scale;  // softcap: scale / cap; ALiBi without softcap: scale
  SoftcapTerms softcap_terms;

  int batch;
  int q_heads;
  int heads_per_kv;  // q_heads / kv_heads
  int q_len;         // plain: query rows of every sequence
  int kv_len;        // plain: key rows of every sequence

  int q_limit;       // packed: row coordinates of the q map
  int kv_limit;      // packed: row coordinates of the k and v maps
  int q_batch_step;  // 0 when q is broadcast over the batch, else 1
  int q_head_step;   // and so on: a stride of 0 is no TMA stride
  int k_batch_step;
  int k_head_step;
  int v_batch_step;
  int v_head_step;

  int unit_count;     // plain: units in the whole problem
  int groups;         // plain: units of one head
  int section_heads;  // heads walked together, longest units first
  unsigned zero;      // 0: an operand the compiler cannot fold (softmax_tile.cuh)
};

}  // namespace tilewise::gpu
