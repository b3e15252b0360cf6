// Attention's products on the matrix unit, for bf16 heads of a multiple of 32 elements. Scores come
// transposed, [keys, rows], because then the keys are the left operand, which the unit reads as
// they lie, and a vector holds one key's scores of 16 rows. Probabilities and score gradients enter
// products as a high and a low bf16, so that sums are as good as f32.
#pragma once

#include "ops/cpu/attention_tile.h"
#include "ops/cpu/tile_unit.h"
#include "ops/cpu/transpose16.h"

#if defined(__AVX512F__)

namespace miles::MILES_ISA {

/// Whether heads like q's go to the matrix unit, or to its emulation. The same for a model's every
/// call: prefill, decode and training give the same bits.
bool on_matrix_unit(const Tensor& q);
void unit_attention(Exec& exec, const AttentionArgs& args);
void unit_attention_backward(Exec& exec, const AttentionBackwardArgs& args);

constexpr int kGroups = kRows / kUnitRows;  // of 16 rows in a block
constexpr int kPairs = kKeys / 2;           // of keys in a tile, or of rows in a block
constexpr int kScores = kKeys * kUnitRows;  // of a group with a tile of keys
static_assert(kRows == kKeys && kWidth == kUnitRows);

/// The pairs of elements of 16 rows, across lanes: to[pair, row]; a null row is zeros.
MILES_INLINE void transpose_pairs(const BFloat16* const* rows, int64_t dim, uint32_t* to) {
  for (int64_t d = 0; d < dim; d += kUnitDepth) {
    __m512i r[kUnitRows];
    for (int i = 0; i < kUnitRows; ++i)
      r[i] = rows[i] != nullptr ? _mm512_loadu_si512(rows[i] + d) : _mm512_setzero_si512();
    transpose16(r);
    for (int i = 0; i < kUnitRows; ++i) _mm512_store_si512(to + (d / 2 + i) * kUnitRows, r[i]);
  }
}

MILES_INLINE VecU load_bits(const BFloat16* row, int64_t d) {
  VecH half = {};
  if (row != nullptr) __builtin_memcpy(&half, row + d, sizeof half);
  return widened(half);
}

/// Two rows side by side: to[d] = (a[d], b[d]); a null row is zeros. Whether all are finite.
MILES_INLINE bool pair_rows(const BFloat16* a, const BFloat16* b, int64_t dim, uint32_t* to) {
  VecI bad = {};
  for (int64_t d = 0; d < dim; d += kWidth) {
    const VecU x = load_bits(a, d), y = load_bits(b, d);
    bad |= (x & 0x7F80U) == 0x7F80U;
    bad |= (y & 0x7F80U) == 0x7F80U;
    const VecU both = x | y << 16;
    __builtin_memcpy(to + d, &both, sizeof both);
  }
  return _mm512_test_epi32_mask(bits_as<__m512i>(bad), bits_as<__m512i>(bad)) == 0;
}

/// to[j] = rows[j] for the rows of a tile; a null row is zeros.
MILES_INLINE void copy_rows(const BFloat16* const* rows, int64_t dim, BFloat16* to) {
  for (int j = 0; j < kKeys; ++j) {
    const auto bytes = static_cast<size_t>(dim) * sizeof(BFloat16);
    if (rows[j] != nullptr)
      __builtin_memcpy(to + j * dim, rows[j], bytes);
    else
      __builtin_memset(to + j * dim, 0, bytes);
  }
}

/// products[j, r] = Σ_d keys[j, d]·rows[r, d] for a tile of keys and 16 rows (as transpose_pairs).
template <class Unit>
void multiply_group(const BFloat16* keys, const uint32_t* rows, int64_t dim, float* products) {
  const int64_t stride = dim * static_cast<int64_t>(sizeof(BFloat16)), step = kUnitRows * dim;
  Unit::template zero<0>();
  Unit::template zero<1>();
  Unit::template zero<2>();
  Unit::template zero<3>();
  for (int64_t d = 0; d < dim; d += kUnitDepth) {
    Unit::template load<6>(rows + d / 2 * kUnitRows, 64);
    Unit::template load<4>(keys + d, stride);
    Unit::template multiply<0, 4, 6>();
    Unit::template load<5>(keys + step + d, stride);
    Unit::template multiply<1, 5, 6>();
    Unit::template load<4>(keys + 2 * step + d, stride);
    Unit::template multiply<2, 4, 6>();
    Unit::template load<5>(keys + 3 * step + d, stride);
    Unit::template multiply<3, 5, 6>();
  }
  Unit::template store<0>(products, 64);
  Unit::template store<1>(products + kScores / 4, 64);
  Unit::template store<2>(products + kScores / 2, 64);
  Unit::template store<3>(products + 3 * kScores / 4, 64);
}

/// Left operands of 64 columns: values are high + low.
struct Halves {
  BFloat16 *high, *low;  // [16 or more, kKeys]
};

/// to[r, j] = from[j, r].
MILES_INLINE void split_transposed(const float* from, Halves to) {
  for (int half = 0; half < kKeys; half += kUnitDepth) {
    __m512i high[kUnitRows], low[kUnitRows];
    for (int i = 0; i < kUnitRows; ++i) {
      const SplitVec even = split_in_two(load(from + (half + 2 * i) * kUnitRows));
      const SplitVec odd = split_in_two(load(from + (half + 2 * i + 1) * kUnitRows));
      high[i] = bits_as<__m512i>(even.high | odd.high << 16);
      low[i] = bits_as<__m512i>(even.low | odd.low << 16);
    }
    transpose16(high);
    transpose16(low);
    for (int r = 0; r < kUnitRows; ++r) {
      _mm512_storeu_si512(to.high + r * kKeys + half, high[r]);
      _mm512_storeu_si512(to.low + r * kKeys + half, low[r]);
    }
  }
}

/// sums[i, d] += Σ_k weights[i, k]·rows[k, d] for 16 i and 64 k; rows as pair_rows lays them.
template <class Unit>
void add_product(Halves weights, const uint32_t* rows, int64_t dim, float* sums) {
  const int64_t line = dim * 4, left = kKeys * static_cast<int64_t>(sizeof(BFloat16));
  const uint32_t* const later = rows + kUnitRows * dim;
  Unit::template load<4>(weights.high, left);
  Unit::template load<5>(weights.high + kUnitDepth, left);
  Unit::template load<6>(weights.low, left);
  Unit::template load<7>(weights.low + kUnitDepth, left);
  for (int64_t d = 0; d < dim; d += 2 * kUnitRows) {  // two chains at a time
    Unit::template load<0>(sums + d, line);
    Unit::template load<1>(sums + d + kUnitRows, line);
    Unit::template load<2>(rows + d, line);
    Unit::template load<3>(rows + d + kUnitRows, line);
    Unit::template multiply<0, 4, 2>();
    Unit::template multiply<1, 4, 3>();
    Unit::template multiply<0, 6, 2>();
    Unit::template multiply<1, 6, 3>();
    Unit::template load<2>(later + d, line);
    Unit::template load<3>(later + d + kUnitRows, line);
    Unit::template multiply<0, 5, 2>();
    Unit::template multiply<1, 5, 3>();
    Unit::template multiply<0, 7, 2>();
    Unit::template multiply<1, 7, 3>();
    Unit::template store<0>(sums + d, line);
    Unit::template store<1>(sums + d + kUnitRows, line);
  }
}

}  // namespace miles::MILES_ISA

#endif
