// mma.sync: D[16, 8] += A[16, 16] * B[16, 8] by one warp, and the matrix loads that feed it.
// Accumulator layout, lane l, element e of 4:
//   row = l / 4 + 8 (e / 2), column = 2 (l % 4) + e % 2
// Packing the accumulators of two neighbouring n8 blocks gives the A operand of one k16 step, so P
// needs no shuffle between the two products.
#pragma once

#include "kernels/ptx.cuh"

namespace tilewise::gpu {

// Four 8x8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8 and
// receives elements 2 (l % 4), 2 (l % 4) + 1 of row l / 4 of each.
TW_DEVICE void load_matrices(Uint32 address, Uint32 (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// The same of the transposed matrices.
TW_DEVICE void load_transposed(Uint32 address, Uint32 (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// d[0..3] += a * (b0, b1).
template <Element kElement>
TW_DEVICE void mma_16x8x16(float* d, const Uint32 (&a)[4], Uint32 b0, Uint32 b1) {
#define TW_MMA(TYPE)                                         \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE \
      ".f32 {%0, %1, %2, %3}, "                              \
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"        \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (kElement == Element::kBf16) {
    TW_MMA("bf16");
  } else {
    TW_MMA("f16");
  }
#undef TW_MMA
}

}  // namespace tilewise::gpu
