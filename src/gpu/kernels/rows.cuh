// Tiles of rows between global memory and shared memory by all threads of a CTA, for any strides:
// 16-byte cp.async where data and strides allow it, single elements where not. What lies outside
// the sequence or beyond its columns becomes zero and is never read.
#pragma once

#include "args.h"
#include "kernels/ptx.cuh"

namespace tilewise::gpu {

template <int kBytes>
struct ValueOfSize;
template <>
struct ValueOfSize<2> {
  using Type = unsigned short;
};
template <>
struct ValueOfSize<4> {
  using Type = Uint32;
};
// The bits of one element.
template <KernelSpec kSpec>
using Value = typename ValueOfSize<bytes_of(kSpec.element)>::Type;

struct alignas(16) Chunk {
  Uint32 word[4];
};

// Copies `bytes` of 16 and zeroes the rest; with 0 bytes the source is not read.
TW_DEVICE void copy_async(Uint32 shared, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared),
               "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}

// All copies that this thread has started have landed.
TW_DEVICE void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The first `count` elements at `from`, then zeros.
template <class T>
TW_DEVICE Chunk gather(const T* from, int count) {
  constexpr int kPerWord = 4 / sizeof(T);
  Chunk chunk;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    chunk.word[w] = 0;
#pragma unroll
    for (int i = 0; i < kPerWord; ++i) {
      const int at = w * kPerWord + i;
      if (at < count) chunk.word[w] |= static_cast<Uint32>(from[at]) << (i * 16);
    }
  }
  return chunk;
}

// Row 0 of one head of one sequence.
template <KernelSpec kSpec>
TW_DEVICE Value<kSpec>* rows_of(const RowSource& source, int batch, int start, int head) {
  return static_cast<Value<kSpec>*>(source.data) + head * source.head +
         (kSpec.varlen ? start * source.row : batch * source.batch);
}

// A power of two: threads that share a row.
constexpr int lanes_for(int chunks) {
  int lanes = 1;
  while (lanes < chunks) lanes *= 2;
  return lanes;
}

// Rows [first, first + kRows) of `origin`, as far as they lie in [0, limit), to a tile with kPitch
// bytes a row.
template <int kRows, int kColumns, int kPitch, int kThreads, class T>
TW_DEVICE void load_rows(unsigned char* tile, const RowSource& source, const T* origin, int first,
                         int limit) {
  constexpr int kPerChunk = 16 / sizeof(T);
  constexpr int kChunks = kColumns / kPerChunk;
  constexpr int kLanes = lanes_for(kChunks);
  constexpr int kStep = kThreads / kLanes;  // rows of one pass
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % kLanes * kPerChunk;
  const int row0 = thread / kLanes;
  if (kLanes > kChunks && column >= kColumns) return;
  int count = source.columns - column;
  count = count < 0 ? 0 : (count > kPerChunk ? kPerChunk : count);
  const T* from = origin + (first + row0) * source.row + column;
  unsigned char* to = tile + row0 * kPitch + column * static_cast<int>(sizeof(T));
  if (!source.aligned) {
#pragma unroll 1
    for (int row = row0; row < kRows; row += kStep) {
      const bool inside = first + row >= 0 && first + row < limit;
      *reinterpret_cast<Chunk*>(to) = gather(from, inside ? count : 0);
      from += kStep * source.row;
      to += kStep * kPitch;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < (kRows + kStep - 1) / kStep; ++i) {
    const int row = row0 + i * kStep;
    if (kRows % kStep != 0 && row >= kRows) return;
    const bool inside = first + row >= 0 && first + row < limit && count > 0;
    copy_async(shared_address(to), inside ? from : origin,
               inside ? count * static_cast<int>(sizeof(T)) : 0);
    from += kStep * source.row;
    to += kStep * kPitch;
  }
}

// Rows [first, first + kRows) of a tile to `origin` by one warp; rows outside [0, limit) stay.
template <int kRows, int kColumns, int kPitch, class T>
TW_DEVICE void store_rows(const unsigned char* tile, const RowSource& target, T* origin, int first,
                          int limit) {
  constexpr int kPerChunk = 16 / sizeof(T);
  constexpr int kChunks = kColumns / kPerChunk;
#pragma unroll 4
  for (int i = lane_id(); i < kRows * kChunks; i += 32) {
    const int row = i / kChunks;
    const int column = i % kChunks * kPerChunk;
    if (first + row < 0 || first + row >= limit) continue;
    const unsigned char* from = tile + row * kPitch + column * static_cast<int>(sizeof(T));
    T* to = origin + (first + row) * target.row + column;
    if (target.aligned && column + kPerChunk <= target.columns) {
      *reinterpret_cast<Chunk*>(to) = *reinterpret_cast<const Chunk*>(from);
    } else {
      for (int e = 0; e < kPerChunk && column + e < target.columns; ++e) {
        to[e] = reinterpret_cast<const T*>(from)[e];
      }
    }
  }
}

}  // namespace tilewise::gpu
