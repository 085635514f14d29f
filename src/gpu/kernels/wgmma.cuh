// wgmma: D[64, N] += A[64, 16] * B[16, N] by the four warps of a warpgroup, D in registers.
// Accumulator layout, warp w of the group, lane l, n8 block j, element e of 4:
//   row = 16 w + l / 4 + 8 (e / 2), column = 8 j + 2 (l % 4) + e % 2.
// Packing two neighbouring n8 blocks gives exactly the A operand of one k16 step, so P needs no
// shuffle between the two products. Shared-memory operands are named by 64-bit descriptors.
#pragma once

#include "kernels/ptx.cuh"

namespace tilewise::gpu {

// Before the first wgmma of a batch: registers written since the last one are ordered.
TW_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

TW_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
TW_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Descriptors of 128-byte-swizzled tiles, 1024-byte aligned. Bits 0..13 hold the address / 16,
// 16..29 the leading and 32..45 the stride byte offset / 16, 62..63 = 1 the swizzle.
// K-major (Q, K): 8 rows are 1024 bytes apart; one k16 step is +32 bytes.
TW_DEVICE Uint64 row_tile_descriptor(Uint32 address) {
  return (Uint64{1} << 62) | (Uint64{1024 >> 4} << 32) | (Uint64{1} << 16) |
         ((address & 0x3ffff) >> 4);
}

// MN-major (V as B operand): 64-column blocks are kRows * 128 bytes apart, 8 rows 1024 bytes; one
// k16 step is 16 rows, +2048 bytes.
template <int kRows>
TW_DEVICE Uint64 column_tile_descriptor(Uint32 address) {
  return (Uint64{1} << 62) | (Uint64{1024 >> 4} << 32) | (Uint64{(kRows * 128) >> 4} << 16) |
         ((address & 0x3ffff) >> 4);
}

// clang-format off
// Operand lists of N / 2 accumulators: placeholders, then registers.
#define TW_L0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TW_L1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define TW_L2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define TW_L3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define TW_L4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define TW_L5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define TW_L6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define TW_L7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define TW_L8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define TW_L9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define TW_L10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define TW_L11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define TW_L12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define TW_L13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define TW_L14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define TW_L15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define TW_R(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                   "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TW_LIST_16 TW_L0
#define TW_LIST_32 TW_LIST_16 ", " TW_L1
#define TW_LIST_48 TW_LIST_32 ", " TW_L2
#define TW_LIST_64 TW_LIST_48 ", " TW_L3
#define TW_LIST_80 TW_LIST_64 ", " TW_L4
#define TW_LIST_96 TW_LIST_80 ", " TW_L5
#define TW_LIST_112 TW_LIST_96 ", " TW_L6
#define TW_LIST_128 TW_LIST_112 ", " TW_L7
#define TW_LIST_144 TW_LIST_128 ", " TW_L8
#define TW_LIST_160 TW_LIST_144 ", " TW_L9
#define TW_LIST_176 TW_LIST_160 ", " TW_L10
#define TW_LIST_192 TW_LIST_176 ", " TW_L11
#define TW_LIST_208 TW_LIST_192 ", " TW_L12
#define TW_LIST_224 TW_LIST_208 ", " TW_L13
#define TW_LIST_240 TW_LIST_224 ", " TW_L14
#define TW_LIST_256 TW_LIST_240 ", " TW_L15
#define TW_REGS_16(d) TW_R(d, 0)
#define TW_REGS_32(d) TW_REGS_16(d), TW_R(d, 8)
#define TW_REGS_48(d) TW_REGS_32(d), TW_R(d, 16)
#define TW_REGS_64(d) TW_REGS_48(d), TW_R(d, 24)
#define TW_REGS_80(d) TW_REGS_64(d), TW_R(d, 32)
#define TW_REGS_96(d) TW_REGS_80(d), TW_R(d, 40)
#define TW_REGS_112(d) TW_REGS_96(d), TW_R(d, 48)
#define TW_REGS_128(d) TW_REGS_112(d), TW_R(d, 56)
#define TW_REGS_144(d) TW_REGS_128(d), TW_R(d, 64)
#define TW_REGS_160(d) TW_REGS_144(d), TW_R(d, 72)
#define TW_REGS_176(d) TW_REGS_160(d), TW_R(d, 80)
#define TW_REGS_192(d) TW_REGS_176(d), TW_R(d, 88)
#define TW_REGS_208(d) TW_REGS_192(d), TW_R(d, 96)
#define TW_REGS_224(d) TW_REGS_208(d), TW_R(d, 104)
#define TW_REGS_240(d) TW_REGS_224(d), TW_R(d, 112)
#define TW_REGS_256(d) TW_REGS_240(d), TW_R(d, 120)

// N, then the numbers of the six operands that follow its N / 2 accumulators.
#define TW_FOR_EACH_N(X) \
  X(16, "%8", "%9", "%10", "%11", "%12", "%13") \
  X(32, "%16", "%17", "%18", "%19", "%20", "%21") \
  X(48, "%24", "%25", "%26", "%27", "%28", "%29") \
  X(64, "%32", "%33", "%34", "%35", "%36", "%37") \
  X(80, "%40", "%41", "%42", "%43", "%44", "%45") \
  X(96, "%48", "%49", "%50", "%51", "%52", "%53") \
  X(112, "%56", "%57", "%58", "%59", "%60", "%61") \
  X(128, "%64", "%65", "%66", "%67", "%68", "%69") \
  X(144, "%72", "%73", "%74", "%75", "%76", "%77") \
  X(160, "%80", "%81", "%82", "%83", "%84", "%85") \
  X(176, "%88", "%89", "%90", "%91", "%92", "%93") \
  X(192, "%96", "%97", "%98", "%99", "%100", "%101") \
  X(208, "%104", "%105", "%106", "%107", "%108", "%109") \
  X(224, "%112", "%113", "%114", "%115", "%116", "%117") \
  X(240, "%120", "%121", "%122", "%123", "%124", "%125") \
  X(256, "%128", "%129", "%130", "%131", "%132", "%133")

#define TW_PRODUCT(N, TYPE, OPERANDS, ADD, TRANSPOSE)                                 \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {"                \
  TW_LIST_##N "}, " OPERANDS ", " ADD ", 1, 1, " TRANSPOSE ";\n"
#define TW_WGMMA(N, TYPE, OPERANDS, TRANSPOSE, PREDICATE, ...)                        \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " PREDICATE ", 0;\n"             \
               TW_PRODUCT(N, TYPE, OPERANDS, "add", TRANSPOSE) "}\n"                  \
               : TW_REGS_##N(d) : __VA_ARGS__)
// Four k16 steps of two K-major operands, each +32 bytes, as one statement.
#define TW_WGMMA_BOX(N, TYPE, A, B, PREDICATE, ...)                                   \
  asm volatile("{\n.reg .pred add, yes;\n.reg .b64 a1, a2, a3, b1, b2, b3;\n"         \
               "setp.ne.b32 add, " PREDICATE ", 0;\nsetp.eq.b32 yes, 0, 0;\n"         \
               "add.s64 a1, " A ", 2;\nadd.s64 a2, " A ", 4;\nadd.s64 a3, " A ", 6;\n" \
               "add.s64 b1, " B ", 2;\nadd.s64 b2, " B ", 4;\nadd.s64 b3, " B ", 6;\n" \
               TW_PRODUCT(N, TYPE, A ", " B, "add", "0, 0")                           \
               TW_PRODUCT(N, TYPE, "a1, b1", "yes", "0, 0")                           \
               TW_PRODUCT(N, TYPE, "a2, b2", "yes", "0, 0")                           \
               TW_PRODUCT(N, TYPE, "a3, b3", "yes", "0, 0") "}\n"                     \
               : TW_REGS_##N(d) : __VA_ARGS__)
// clang-format on

// D = A * B (+ D when add is not 0); A and B K-major in shared memory.
template <int kN, Element kElement>
TW_DEVICE void wgmma_shared(float (&d)[kN / 2], Uint64 a, Uint64 b, int add) {
  static_assert(kN % 16 == 0 && kN <= 256);
#define TW_CASE(N, T0, T1, T2, T3, T4, T5)                                 \
  if constexpr (kN == N && kElement == Element::kBf16)                     \
    TW_WGMMA(N, "bf16", T0 ", " T1, "0, 0", T2, "l"(a), "l"(b), "r"(add)); \
  if constexpr (kN == N && kElement == Element::kFp16)                     \
    TW_WGMMA(N, "f16", T0 ", " T1, "0, 0", T2, "l"(a), "l"(b), "r"(add));
  TW_FOR_EACH_N(TW_CASE)
#undef TW_CASE
}

// The same over 64 columns: the columns of one box of A and B.
template <int kN, Element kElement>
TW_DEVICE void wgmma_shared_box(float (&d)[kN / 2], Uint64 a, Uint64 b, int add) {
  static_assert(kN % 16 == 0 && kN <= 256);
#define TW_CASE(N, T0, T1, T2, T3, T4, T5)                         \
  if constexpr (kN == N && kElement == Element::kBf16)             \
    TW_WGMMA_BOX(N, "bf16", T0, T1, T2, "l"(a), "l"(b), "r"(add)); \
  if constexpr (kN == N && kElement == Element::kFp16)             \
    TW_WGMMA_BOX(N, "f16", T0, T1, T2, "l"(a), "l"(b), "r"(add));
  TW_FOR_EACH_N(TW_CASE)
#undef TW_CASE
}

// D += A * B; A in registers, B MN-major in shared memory.
template <int kN, Element kElement>
TW_DEVICE void wgmma_registers(float (&d)[kN / 2], const Uint32* a, Uint64 b) {
  static_assert(kN % 16 == 0 && kN <= 256);
#define TW_A(T0, T1, T2, T3, T4) "{" T0 ", " T1 ", " T2 ", " T3 "}, " T4
#define TW_CASE(N, T0, T1, T2, T3, T4, T5)                                                  \
  if constexpr (kN == N && kElement == Element::kBf16)                                      \
    TW_WGMMA(N, "bf16", TW_A(T0, T1, T2, T3, T4), "1", T5, "r"(a[0]), "r"(a[1]), "r"(a[2]), \
             "r"(a[3]), "l"(b), "r"(1));                                                    \
  if constexpr (kN == N && kElement == Element::kFp16)                                      \
    TW_WGMMA(N, "f16", TW_A(T0, T1, T2, T3, T4), "1", T5, "r"(a[0]), "r"(a[1]), "r"(a[2]),  \
             "r"(a[3]), "l"(b), "r"(1));
  TW_FOR_EACH_N(TW_CASE)
#undef TW_CASE
#undef TW_A
}

}  // namespace tilewise::gpu
