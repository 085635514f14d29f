// Kernels that do one thing only, to measure what a GPU can do at most: read, copy, exponentiate.
#pragma once

#include "kernels/ptx.cuh"

namespace tilewise::gpu {

// Every 16 bytes of `from` once; `to` gets one number a thread, so that nothing is left out.
TW_DEVICE void read_all(const uint4* g_from, uint4* g_to, long long vectors) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  uint4 sum = {0, 0, 0, 0};
#pragma unroll 8
  for (long long i = first; i < vectors; i += step) {
    const uint4 value = g_from[i];
    sum = {sum.x ^ value.x, sum.y ^ value.y, sum.z ^ value.z, sum.w ^ value.w};
  }
  g_to[first] = sum;
}

TW_DEVICE void copy_all(const uint4* g_from, uint4* g_to, long long vectors) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 8
  for (long long i = first; i < vectors; i += step) g_to[i] = g_from[i];
}

// 8 independent chains of `rounds` exponentials a thread.
TW_DEVICE void exponentiate(float* g_to, int rounds) {
  float x[8];
  for (int i = 0; i < 8; ++i) x[i] = -0.1f * static_cast<float>(i) - 1e-3f * threadIdx.x;
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = exp2_approx(x[i]);
  }
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += x[i];
  g_to[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

}  // namespace tilewise::gpu
