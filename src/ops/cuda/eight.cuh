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

/// p is a multiple of 16 bytes.
__device__ inline Eight load_wide(const float* p) {
  const float4 a = reinterpret_cast<const float4*>(p)[0];
  const float4 b = reinterpret_cast<const float4*>(p)[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ inline Eight load_wide(const bf16* p) {
  const uint4 words = *reinterpret_cast<const uint4*>(p);
  return {{low_bf16(words.x), high_bf16(words.x), low_bf16(words.y), high_bf16(words.y),
           low_bf16(words.z), high_bf16(words.z), low_bf16(words.w), high_bf16(words.w)}};
}
__device__ inline void store_wide(float* p, const Eight& x) {
  reinterpret_cast<float4*>(p)[0] = make_float4(x.at[0], x.at[1], x.at[2], x.at[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(x.at[4], x.at[5], x.at[6], x.at[7]);
}
__device__ inline void store_wide(bf16* p, const Eight& x) {
  *reinterpret_cast<uint4*>(p) =
      make_uint4(bf16_pair(x.at[0], x.at[1]), bf16_pair(x.at[2], x.at[3]),
                 bf16_pair(x.at[4], x.at[5]), bf16_pair(x.at[6], x.at[7]));
}

/// p[0 … 7], of which the first `left` are there; the others are `rest`. With `wide` all are.
template <class T>
__device__ Eight load(const T* p, int64_t left, bool wide, float rest = 0) {
  if (wide) return load_wide(p);
  Eight x;
#pragma unroll
  for (int i = 0; i < 8; ++i) x.at[i] = i < left ? to_f32(p[i]) : rest;
  return x;
}
template <class T>
__device__ void store(T* p, const Eight& x, int64_t left, bool wide) {
  if (wide) return store_wide(p, x);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < left) p[i] = from_f32<T>(x.at[i]);
}

}  // namespace miles::cuda
