// The processor's matrix unit (AMX) as attention uses it: eight tiles of 16 rows of 64 bytes. And
// the same in plain code, so that tests run what uses it on any machine with AVX-512.
#pragma once

#include "ops/cpu/simd.h"

#if defined(__AVX512F__)

namespace miles::MILES_ISA {

constexpr int kUnitRows = 16;              // of a tile; also its columns of f32
constexpr int kUnitDepth = 2 * kUnitRows;  // bf16 values in a row

/// x = high + low, as bf16 bits.
struct SplitVec {
  VecU high, low;
};
MILES_INLINE SplitVec split_in_two(Vec x) {
  const VecU high = bf16_bits(x);
  return {high, bf16_bits(x - bits_as<Vec>(high << 16))};
}

/// multiply<C, A, B>: C[i, j] += Σ_k A[i, 2k]·B[k, 2j] + A[i, 2k+1]·B[k, 2j+1], k ascending: A is
/// rows of bf16 as they lie, B has pairs of consecutive k side by side. Strides are bytes.
/// Own assembly, because the compiler's intrinsics take no computed tile and know of no memory.
struct AmxUnit {
  static void begin() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  static void end() { asm volatile("tilerelease"); }
  template <int T>
  MILES_INLINE static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  MILES_INLINE static void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  MILES_INLINE static void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  MILES_INLINE static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

struct EmulatedUnit {
  static void begin() {}
  static void end() {}
  template <int T>
  static void zero() {
    __builtin_memset(tiles[T], 0, sizeof tiles[T]);
  }
  template <int T>
  static void load(const void* from, int64_t stride) {
    for (int i = 0; i < kUnitRows; ++i)
      __builtin_memcpy(tiles[T][i], static_cast<const char*>(from) + i * stride, 64);
  }
  template <int T>
  static void store(void* to, int64_t stride) {
    for (int i = 0; i < kUnitRows; ++i)
      __builtin_memcpy(static_cast<char*>(to) + i * stride, tiles[T][i], 64);
  }
  template <int C, int A, int B>
  static void multiply() {
    for (int i = 0; i < kUnitRows; ++i)
      for (int k = 0; k < kUnitRows; ++k)
        for (int shift : {16, 0})
          for (int j = 0; j < kUnitRows; ++j) {
            const float a = bits_as<float>(tiles[A][i][k] << shift & 0xFFFF0000U);
            const float b = bits_as<float>(tiles[B][k][j] << shift & 0xFFFF0000U);
            tiles[C][i][j] = bits_as<uint32_t>(bits_as<float>(tiles[C][i][j]) + a * b);
          }
  }

  static inline thread_local uint32_t tiles[8][kUnitRows][kUnitRows];
};

}  // namespace miles::MILES_ISA

#endif
