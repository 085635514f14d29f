// The tile instructions of AMX-BF16: eight registers of 16 rows of 64 bytes. A kernel is a template
// over these words, so that tests run it over plain arrays where the hardware is missing.
//
// Register numbers are part of the instructions, so they are template arguments. "memory" keeps
// loads and stores of tiles in order with those of vectors.
#pragma once

#include <stdint.h>

#include "cpu/simd.h"

namespace tilewise::cpu {

struct AmxWords {
  // Every thread, before its first tile; stop() lets the system forget the registers.
  static TW_INLINE void start() {
    struct alignas(64) Configuration {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const configuration;
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  static TW_INLINE void stop() { asm volatile("tilerelease"); }
  template <int kTile>
  static TW_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // 16 rows, `stride` bytes apart.
  template <int kTile>
  static TW_INLINE void load(const void* rows, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  // Of what is read once a panel: it stays in the second cache and leaves the first to what is
  // written there.
  template <int kTile>
  static TW_INLINE void stream(const void* rows, int64_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(rows), "r"(stride), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  static TW_INLINE void store(void* rows, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(rows), "r"(stride), "i"(kTile)
                 : "memory");
  }
  // C [16][16] floats += A [16][32] B: a row of B holds two words for each column of C.
  template <int kC, int kA, int kB>
  static TW_INLINE void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace tilewise::cpu
