// One step of the online softmax, and the weighted sum of values that goes with it: what prefill
// and decode share, so that a row's bits are the same in both.
#pragma once

#include "ops/attention.h"
#include "ops/cuda/attention_tile.cuh"

namespace miles::cuda {

inline constexpr int kKeys = kAttentionTile;

/// The running softmax of 16 rows, as their C fragments lie: this lane has rows g and g + 8.
struct RowState {
  float top[2] = {-infinity(), -infinity()};  // largest score so far, in units of log 2
  float sum[2] = {0, 0};                      // Σ 2^(score − top) over this lane's columns
};

/// Scores of keys that a row may not see become −∞: position[] is of rows g and g + 8, −1 for no
/// row.
__device__ inline void hide_later_keys(float (&s)[kKeys / 8][4], const int (&position)[2],
                                       int tile_begin, int lane) {
  const int column = tile_begin + (lane & 3) * 2;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + n * 8 + i % 2 > position[i / 2]) s[n][i] = -infinity();
}

/// Scores become weights; keep[] is what the new maximum leaves of the sums so far. A tile without
/// a visible key changes nothing: the maximum stays, keep is 2^0 = 1, every weight is 2^−∞ = 0. A
/// lane's sum takes its columns ascending, whichever warp and row of the tile it is.
__device__ inline void softmax_step(float (&s)[kKeys / 8][4], RowState& rows, float (&keep)[2],
                                    float scale_log2) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = fmaxf(s[0][half * 2], s[0][half * 2 + 1]);
#pragma unroll
    for (int n = 1; n < kKeys / 8; ++n)
      largest = fmaxf(largest, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
    const float top = fmaxf(rows.top[half], row_max(largest) * scale_log2);
    const float base = top == -infinity() ? 0.0F : top;  // −∞ − −∞ would be NaN
    keep[half] = exp2_fast(rows.top[half] - base);
    rows.top[half] = top;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) {
        s[n][i] = exp2_fast(fmaf(s[n][i], scale_log2, -base));
        sum += s[n][i];
      }
    rows.sum[half] = fmaf(rows.sum[half], keep[half], sum);
  }
}

/// acc *= keep, unless every factor of the warp is 1: a product that changes no bit.
template <int kN>
__device__ inline void rescale(float (&acc)[kN][4], const float (&keep)[2]) {
  if (!__any_sync(kAllLanes, keep[0] != 1.0F || keep[1] != 1.0F)) return;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n][i] *= keep[i / 2];
}

__device__ inline bool non_finite(uint32_t pair) {
  return (pair & 0x7F80U) == 0x7F80U || (pair & 0x7F800000U) == 0x7F800000U;
}

/// Whether a tile of kKeys values has an infinity or NaN in kN·8 columns; the same for all lanes.
template <int kN, int kD>
__device__ inline bool any_non_finite(uint32_t values) {
  bool found = false;
#pragma unroll 1
  for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t v[4];
      load_matrices(v, (values ^ (n << 4)) + k * 16 * kRowBytes<kD>);
#pragma unroll
      for (int i = 0; i < 4; ++i) found |= non_finite(v[i]);
    }
  return __any_sync(kAllLanes, found);
}

/// multiply_weights row by row, with the values of keys that the row may not see put to zero: a
/// weight of 0 times NaN would be NaN. Rare, hence slow; the bits are those of multiply_weights
/// when all is finite, for a product with 0 adds nothing either way.
template <int kM, int kN, int kD>
__device__ inline void multiply_visible(float (&acc)[kM][kN][4],
                                        const uint32_t (&w)[kM][kKeys / 16][4], uint32_t values,
                                        const int (&position)[kM][2], int tile_begin, int lane) {
  const int key = tile_begin + (lane & 3) * 2;  // of b0's low half
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    uint32_t v[kKeys / 32][4];  // b0, b1 of two products each
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t pair[4];
      load_matrices_transposed(pair, (values ^ (n / 2 << 5)) + k * 16 * kRowBytes<kD>);
      v[k / 2][k % 2 * 2] = pair[n % 2 * 2];
      v[k / 2][k % 2 * 2 + 1] = pair[n % 2 * 2 + 1];
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const float before[4] = {acc[m][n][0], acc[m][n][1], acc[m][n][2], acc[m][n][3]};
#pragma unroll 1
      for (int row = 0; row < 8; ++row)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int last = __shfl_sync(kAllLanes, position[m][half], row * 4);
          float sum[4] = {before[0], before[1], before[2], before[3]};
#pragma unroll
          for (int k = 0; k < kKeys / 16; ++k) {
            uint32_t b[2] = {v[k / 2][k % 2 * 2], v[k / 2][k % 2 * 2 + 1]};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              if (key + k * 16 + i * 8 > last) b[i] = 0;
              if (key + k * 16 + i * 8 + 1 > last) b[i] &= 0xFFFFU;
            }
            mma(sum, w[m][k], b[0], b[1]);
          }
          if (lane / 4 == row) {
            acc[m][n][half * 2] = sum[half * 2];
            acc[m][n][half * 2 + 1] = sum[half * 2 + 1];
          }
        }
    }
  }
}

}  // namespace miles::cuda
