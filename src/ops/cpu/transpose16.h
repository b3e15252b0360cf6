// A 16 × 16 transpose of 32-bit words, which is how operands of tile products are rearranged.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

// GCC 12's headers leave the ignored operand of unmasked AVX-512 intrinsics uninitialised, and warn
// of it where they are used.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace miles {

/// r[i][j] ↔ r[j][i]. Internal to each source: they are compiled for different instruction sets.
[[gnu::target("avx512f")]] static inline void transpose16(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {  // 128-bit lane l of r[4g + c] goes to lane g of t[4l + c]
    const __m512i even0 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    const __m512i odd0 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD);
    const __m512i even1 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    const __m512i odd1 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
    t[c] = _mm512_shuffle_i32x4(even0, even1, 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
    t[8 + c] = _mm512_shuffle_i32x4(even0, even1, 0xDD);
    t[12 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0xDD);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

}  // namespace miles
#endif
