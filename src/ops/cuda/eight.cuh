// Eight neighbouring elements at a time, as f32 in registers: 16-byte accesses where the addresses
// allow them, single elements where not. A thread gets the same elements either way, so that sums
// over a row do not depend on where the row lies.
#pragma once

#include <cstdint>

#include "ops/cuda/numeric.cuh"

namespace miles::cuda {

struct Eight {
  float at[8];
};

/// Whether all addresses are multiples of 16 bytes, or null.
template <class... T>
bool is_aligned(const T*... addresses) {
  return ((reinterpret_cast<uintptr_t>(addresses) % 16 == 0) && ...);
}
/// Whether all accesses of eight elements can be wide: aligned rows of whole eights.
template <class... T>
bool is_wide(int64_t width, const T*... rows) {
  return width % 8 == 0 && is_aligned(rows...);
}

/// How many eights cover `width` elements.
inline int64_t eights(int64_t width) {
  return (width + 7) / 8;
}

__device__ inline float low_bf16(uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ inline float high_bf16(uint32_t word) {
  return __uint_as_float(word & 0xFFFF0000U);
}
__device__ inline uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Eight elements as they lie in memory. A conversion waits for what it converts, and every load
/// behind it waits too: a kernel that reads several eights fetches them all before it widens one.
template <class T>
struct Fetched;
template <>
struct Fetched<float> {
  float4 low, high;
};
template <>
struct Fetched<bf16> {
  uint4 words;
};

__device__ inline Fetched<float> fetch_wide(const float* p) {
  return {reinterpret_cast<const float4*>(p)[0], reinterpret_cast<const float4*>(p)[1]};
}
__device__ inline Fetched<bf16> fetch_wide(const bf16* p) {
  return {*reinterpret_cast<const uint4*>(p)};
}
__device__ inline Eight widened(const Fetched<float>& x) {
  return {{x.low.x, x.low.y, x.low.z, x.low.w, x.high.x, x.high.y, x.high.z, x.high.w}};
}
__device__ inline Eight widened(const Fetched<bf16>& x) {
  return {{low_bf16(x.words.x), high_bf16(x.words.x), low_bf16(x.words.y), high_bf16(x.words.y),
           low_bf16(x.words.z), high_bf16(x.words.z), low_bf16(x.words.w), high_bf16(x.words.w)}};
}
/// Rounded to T.
template <class T>
__device__ Fetched<T> narrowed(const Eight& x);
template <>
__device__ inline Fetched<float> narrowed<float>(const Eight& x) {
  return {make_float4(x.at[0], x.at[1], x.at[2], x.at[3]),
          make_float4(x.at[4], x.at[5], x.at[6], x.at[7])};
}
template <>
__device__ inline Fetched<bf16> narrowed<bf16>(const Eight& x) {
  return {make_uint4(bf16_pair(x.at[0], x.at[1]), bf16_pair(x.at[2], x.at[3]),
                     bf16_pair(x.at[4], x.at[5]), bf16_pair(x.at[6], x.at[7]))};
}

/// p is a multiple of 16 bytes.
template <class T>
__device__ Eight load_wide(const T* p) {
  return widened(fetch_wide(p));
}
__device__ inline void store_wide(float* p, const Eight& x) {
  const Fetched<float> narrow = narrowed<float>(x);
  reinterpret_cast<float4*>(p)[0] = narrow.low;
  reinterpret_cast<float4*>(p)[1] = narrow.high;
}
__device__ inline void store_wide(bf16* p, const Eight& x) {
  *reinterpret_cast<uint4*>(p) = narrowed<bf16>(x).words;
}

/// p[0 … 7], of which the first `left` are there; the others are `rest`. With `wide` all are.
template <class T>
__device__ Fetched<T> fetch(const T* p, int64_t left, bool wide, float rest = 0) {
  if (wide) return fetch_wide(p);
  Eight x;
#pragma unroll
  for (int i = 0; i < 8; ++i) x.at[i] = i < left ? to_f32(p[i]) : rest;
  return narrowed<T>(x);
}
template <class T>
__device__ Eight load(const T* p, int64_t left, bool wide, float rest = 0) {
  return widened(fetch(p, left, wide, rest));
}
template <class T>
__device__ void store(T* p, const Eight& x, int64_t left, bool wide) {
  if (wide) return store_wide(p, x);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < left) p[i] = from_f32<T>(x.at[i]);
}

}  // namespace miles::cuda
