// How attention sees its operands: panels of f32 rows, and tiles of keys with the keys across
// lanes.
#pragma once

#include "ops/attention.h"
#include "ops/cpu/row_loops.h"
#include "ops/head_limits.h"

namespace miles::MILES_ISA {

constexpr int kKeys = kAttentionTile;  // keys of a tile
constexpr int kRows = 64;              // query rows that share a tile of keys

/// Floats from one row of a panel to the next: whole partial sums, zero beyond the head.
MILES_INLINE int64_t panel_stride(int64_t dim) {
  return (dim + kSums - 1) / kSums * kSums;
}

/// to[0, panel_stride(dim)) = from[0, dim), then zeros.
template <class T>
MILES_INLINE void load_row(const T* from, int64_t dim, float* to) {
  int64_t i = 0;
  for (; i + kWidth <= dim; i += kWidth) store(to + i, load(from + i));
  if (i < dim) {
    store(to + i, load(from + i, static_cast<int>(dim - i)));
    i += kWidth;
  }
  for (; i < panel_stride(dim); i += kWidth) store(to + i, Vec{});
}

MILES_INLINE void clear_row(int64_t dim, float* to) {
  for (int64_t i = 0; i < panel_stride(dim); i += kWidth) store(to + i, Vec{});
}

/// Asks for a row that will be read soon. One head's rows lie apart from each other, in an order
/// that the processor does not guess.
template <class T>
MILES_INLINE void prefetch_row(const T* from, int64_t dim) {
  const char* const bytes = reinterpret_cast<const char*>(from);
  for (int64_t i = 0; i < dim * static_cast<int64_t>(sizeof(T)); i += 64)
    __builtin_prefetch(bytes + i);
}

/// Where the keys of one sequence are.
struct KeyRows {
  const int32_t* pages;  // of this sequence, or null
  int64_t page_size;
  int64_t begin;  // without pages
  MILES_INLINE int64_t row(int64_t key) const {
    if (pages == nullptr) return begin + key;
    return pages[key / page_size] * page_size + key % page_size;
  }
};
MILES_INLINE KeyRows keys_of(const AttentionArgs& a, int64_t sequence) {
  if (a.page_table.data() == nullptr) return {nullptr, 1, elements<int32_t>(a.kv_begin)[sequence]};
  return {elements<int32_t>(a.page_table) + sequence * extent(a.page_table, 1), a.page_size, 0};
}

using Vec4 [[gnu::vector_size(16)]] = float;
MILES_INLINE Vec4 load4(const float* p) {
  Vec4 x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
MILES_INLINE Vec4 load4(const BFloat16* p) {
  using Half4 [[gnu::vector_size(8)]] = uint16_t;
  using Word4 [[gnu::vector_size(16)]] = uint32_t;
  Half4 half;
  __builtin_memcpy(&half, p, sizeof half);
  return bits_as<Vec4>(__builtin_convertvector(half, Word4) << 16);
}

/// to[d, j] = rows[j][d] for the kKeys rows of a tile; a null row is zeros.
template <class T>
void load_transposed(const T* const* rows, int64_t dim, float* to) {
  static constexpr T kZeros[kMaxHeadDim] = {};
  for (int j = 0; j < kKeys; j += 4) {
    const T* from[4];
    for (int l = 0; l < 4; ++l) from[l] = rows[j + l] != nullptr ? rows[j + l] : kZeros;
    int64_t d = 0;
    for (; d + 4 <= dim; d += 4) {
      const Vec4 a = load4(from[0] + d), b = load4(from[1] + d);
      const Vec4 c = load4(from[2] + d), e = load4(from[3] + d);
      const Vec4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      const Vec4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Vec4 ce_low = __builtin_shufflevector(c, e, 0, 4, 1, 5);
      const Vec4 ce_high = __builtin_shufflevector(c, e, 2, 6, 3, 7);
      const Vec4 columns[4] = {__builtin_shufflevector(ab_low, ce_low, 0, 1, 4, 5),
                               __builtin_shufflevector(ab_low, ce_low, 2, 3, 6, 7),
                               __builtin_shufflevector(ab_high, ce_high, 0, 1, 4, 5),
                               __builtin_shufflevector(ab_high, ce_high, 2, 3, 6, 7)};
      for (int l = 0; l < 4; ++l)
        __builtin_memcpy(to + (d + l) * kKeys + j, &columns[l], sizeof(Vec4));
    }
    for (; d < dim; ++d)
      for (int l = 0; l < 4; ++l) to[d * kKeys + j + l] = load(from[l] + d, 1)[0];
  }
}

}  // namespace miles::MILES_ISA
