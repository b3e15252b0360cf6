// Eight neighbouring elements at a time, as f32 in registers: 16-byte accesses where the addresses
// allow them, single elements where not. A thread gets the same elements either way, so that sums
// over a row do not depend on where the row lies.
//
// Which of the two it is (kWide) is known when a kernel is compiled. Were it not, each load would
// end in a branch and a conversion: the next one would wait until the one before has arrived.
// Where a thread has several loads to do, it does all of them before it converts any (Raw).
#pragma once

#include <cstdint>
#include <type_traits>

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

/// Calls `body` with std::true_type where accesses are wide, std::false_type where not.
template <class Body>
void with_width(bool wide, Body&& body) {
  if (wide)
    body(std::true_type{});
  else
    body(std::false_type{});
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

/// Eight elements of a row, as they lie in memory.
template <class T>
struct Raw {
  uint4 words[sizeof(T) / 2];
};

/// p[0 … 7], of which the first `left` are there; the others are 0. With kWide all are, or none,
/// and p is a multiple of 16 bytes.
template <bool kWide, class T>
__device__ Raw<T> load_raw(const T* p, int64_t left) {
  Raw<T> raw = {};
  if constexpr (kWide) {
    if (left > 0) raw = *reinterpret_cast<const Raw<T>*>(p);
  } else if constexpr (sizeof(T) == 4) {
    const auto word = [&](int i) { return i < left ? __float_as_uint(p[i]) : 0U; };
    raw.words[0] = make_uint4(word(0), word(1), word(2), word(3));
    raw.words[1] = make_uint4(word(4), word(5), word(6), word(7));
  } else {
    const auto half = [&](int i) -> uint32_t { return i < left ? __bfloat16_as_ushort(p[i]) : 0; };
    const auto word = [&](int i) { return half(2 * i) | half(2 * i + 1) << 16; };
    raw.words[0] = make_uint4(word(0), word(1), word(2), word(3));
  }
  return raw;
}
template <bool kWide, class T>
__device__ void store_raw(T* p, const Raw<T>& raw, int64_t left) {
  if constexpr (kWide) {
    if (left > 0) *reinterpret_cast<Raw<T>*>(p) = raw;
  } else {
    const T* const from = reinterpret_cast<const T*>(&raw);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < left) p[i] = from[i];
  }
}

__device__ inline Eight to_f32(const Raw<float>& raw) {
  const auto [a, b] = raw.words;
  return {{__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w),
           __uint_as_float(b.x), __uint_as_float(b.y), __uint_as_float(b.z), __uint_as_float(b.w)}};
}
__device__ inline Eight to_f32(const Raw<bf16>& raw) {
  const uint4& words = raw.words[0];
  return {{low_bf16(words.x), high_bf16(words.x), low_bf16(words.y), high_bf16(words.y),
           low_bf16(words.z), high_bf16(words.z), low_bf16(words.w), high_bf16(words.w)}};
}

/// Rounded to nearest, ties to even.
template <class T>
__device__ Raw<T> rounded_to(const Eight& x) {
  if constexpr (sizeof(T) == 4) {
    const auto word = [&](int i) { return __float_as_uint(x.at[i]); };
    return {{make_uint4(word(0), word(1), word(2), word(3)),
             make_uint4(word(4), word(5), word(6), word(7))}};
  } else {
    const auto word = [&](int i) { return bf16_pair(x.at[2 * i], x.at[2 * i + 1]); };
    return {{make_uint4(word(0), word(1), word(2), word(3))}};
  }
}
/// Rounded to T and back.
template <class T>
__device__ Eight rounded(const Eight& x) {
  return to_f32(rounded_to<T>(x));
}

/// As load_raw and store_raw; what is not there is `rest`.
template <bool kWide, class T>
__device__ Eight load(const T* p, int64_t left, float rest = 0) {
  Eight x = to_f32(load_raw<kWide>(p, left));
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if ((kWide ? 0 : i) >= left) x.at[i] = rest;
  return x;
}
template <bool kWide, class T>
__device__ void store(T* p, const Eight& x, int64_t left) {
  store_raw<kWide>(p, rounded_to<T>(x), left);
}

}  // namespace miles::cuda
