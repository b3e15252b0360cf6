// Vectors of f32 for the CPU's kernels: loads and stores of f32 and bf16, fused multiply-add.
// Each kernel source is compiled once per instruction set with MILES_ISA naming it, and everything
// here lives in that namespace, so that no linker can merge the wide copy of a function with the
// narrow one. For the same reason kernels use no inline function of the standard library that might
// be emitted.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tensor/dtype.h"

#define MILES_INLINE [[gnu::always_inline]] inline

namespace miles::MILES_ISA {

#if defined(__AVX512F__)
constexpr int kWidth = 16;  // floats in a vector
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

using Vec [[gnu::vector_size(kWidth * 4)]] = float;
using VecI [[gnu::vector_size(kWidth * 4)]] = int32_t;
using VecU [[gnu::vector_size(kWidth * 4)]] = uint32_t;
using VecH [[gnu::vector_size(kWidth * 2)]] = uint16_t;

template <class To, class From>
MILES_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

MILES_INLINE constexpr int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
MILES_INLINE constexpr int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

MILES_INLINE Vec splat(float x) {
  return x - Vec{};
}  // −0 stays −0
MILES_INLINE Vec vmax(Vec a, Vec b) {
  return a > b ? a : b;
}  // b where either is NaN

/// a·b + c: fused where the instruction set has it, two roundings where it has not.
MILES_INLINE Vec madd(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

MILES_INLINE Vec vsqrt(Vec x) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_ps(0xFFFF, x);  // the plain one warns in GCC 12
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
  Vec y;
  for (int i = 0; i < kWidth; ++i) y[i] = __builtin_sqrtf(x[i]);
  return y;
#endif
}

/// x rounded to bf16 in the upper halves, anything in the lower; NaN stays NaN.
MILES_INLINE VecU bf16_above(Vec x) {  // to nearest, ties to even
  const VecU bits = bits_as<VecU>(x);
  const VecU sum = bits + 0x7FFFU + ((bits >> 16) & 1U);
  return x != x ? (bits | 0x400000U) : sum;
}
MILES_INLINE VecU bf16_bits(Vec x) {
  return bf16_above(x) >> 16;
}

// The compiler converts a vector's quarters, one by one, where AVX-512 has one instruction.
MILES_INLINE VecU widened(VecH half) {
#if defined(__AVX512F__)
  return bits_as<VecU>(_mm512_maskz_cvtepu16_epi32(0xFFFF, bits_as<__m256i>(half)));
#else
  return __builtin_convertvector(half, VecU);
#endif
}
/// The lower halves.
MILES_INLINE VecH narrowed(VecU bits) {
#if defined(__AVX512F__)
  return bits_as<VecH>(_mm512_maskz_cvtepi32_epi16(0xFFFF, bits_as<__m512i>(bits)));
#else
  return __builtin_convertvector(bits, VecH);
#endif
}

MILES_INLINE Vec load(const float* p) {
  Vec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
MILES_INLINE Vec load(const BFloat16* p) {
  VecH half;
  __builtin_memcpy(&half, p, sizeof half);
  return bits_as<Vec>(widened(half) << 16);
}
MILES_INLINE void store(float* p, Vec x) {
  __builtin_memcpy(p, &x, sizeof x);
}
MILES_INLINE void store(BFloat16* p, Vec x) {
  const VecH half = narrowed(bf16_bits(x));
  __builtin_memcpy(p, &half, sizeof half);
}

/// The first `count` ≤ kWidth elements; the rest of the vector is 0. Costs nothing extra when the
/// compiler knows that count is kWidth.
template <class T>
MILES_INLINE Vec load(const T* p, int count) {
  if (count == kWidth) return load(p);
  T buffer[kWidth] = {};
  for (int i = 0; i < count; ++i) buffer[i] = p[i];
  return load(buffer);
}
template <class T>
MILES_INLINE void store(T* p, Vec x, int count) {
  if (count == kWidth) return store(p, x);
  T buffer[kWidth];
  store(buffer, x);
  for (int i = 0; i < count; ++i) p[i] = buffer[i];
}

/// x as T would keep it.
template <class T>
MILES_INLINE Vec rounded(Vec x) {
  if constexpr (sizeof(T) == sizeof(float)) return x;
  return bits_as<Vec>(bf16_above(x) & 0xFFFF0000U);
}

}  // namespace miles::MILES_ISA
