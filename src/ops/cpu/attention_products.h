// The two products that attention's forward and backward are made of: rows with a tile of keys, and
// weighted sums of rows. Each result is one chain of multiply-adds in a fixed order; how many rows
// share a register block decides the speed and no bit.
#pragma once

#include "ops/cpu/attention_tile.h"

namespace miles::MILES_ISA {

/// Vectors of columns that R rows keep in registers beside each other.
template <int R>
constexpr int kColumns = kWidth == 16 ? 4
                         : R >= 3     ? 2
                         : R == 2     ? 4
                                      : 8;

/// products[r, j] = Σ_d rows[r, d]·tile[d, j], d ascending.
struct DotRowsArgs {
  const float* rows;  // [R, stride]
  int64_t stride;
  const float* tile;  // [dim, kKeys]
  int64_t dim;
  float* products;  // [R, kKeys]
};
template <int R>
void dot_block(const DotRowsArgs& a) {
  constexpr int kVecs = smaller(kColumns<R>, kKeys / kWidth);
  for (int c = 0; c < kKeys; c += kVecs * kWidth) {
    Vec sum[R][kVecs] = {};
    for (int64_t d = 0; d < a.dim; ++d) {
      Vec keys[kVecs];
      for (int v = 0; v < kVecs; ++v) keys[v] = load(a.tile + d * kKeys + c + v * kWidth);
      for (int r = 0; r < R; ++r) {
        const Vec x = splat(a.rows[r * a.stride + d]);
        for (int v = 0; v < kVecs; ++v) sum[r][v] = madd(x, keys[v], sum[r][v]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVecs; ++v) store(a.products + r * kKeys + c + v * kWidth, sum[r][v]);
  }
}

/// dot_block over any number of rows.
inline void dot_rows(DotRowsArgs a, int64_t rows) {
  for (; rows >= 4; rows -= 4) {
    dot_block<4>(a);
    a.rows += 4 * a.stride;
    a.products += 4 * kKeys;
  }
  if (rows == 3) dot_block<3>(a);
  if (rows == 2) dot_block<2>(a);
  if (rows == 1) dot_block<1>(a);
}

/// to[r, :] = to[r, :]·keep[r] + Σ_k weights[r, k]·from[k, :], k ascending.
struct WeightedSumArgs {
  const float* weights;  // element (r, k) at r·row_step + k·step
  int64_t row_step, step;
  const float* from;  // [count, stride]
  int64_t count;
  float* to;          // [R, stride]
  int64_t stride;     // a multiple of kSums
  const float* keep;  // [R], or null: 1
};
template <int R, int V>
MILES_INLINE void weighted_sum_columns(const WeightedSumArgs& a, int64_t column) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      sum[r][v] = load(a.to + r * a.stride + column + v * kWidth);
      if (a.keep != nullptr) sum[r][v] *= a.keep[r];
    }
  for (int64_t k = 0; k < a.count; ++k) {
    Vec x[V];
    for (int v = 0; v < V; ++v) x[v] = load(a.from + k * a.stride + column + v * kWidth);
    for (int r = 0; r < R; ++r) {
      const Vec weight = splat(a.weights[r * a.row_step + k * a.step]);
      for (int v = 0; v < V; ++v) sum[r][v] = madd(weight, x[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(a.to + r * a.stride + column + v * kWidth, sum[r][v]);
}
template <int R>
void weighted_sum_block(const WeightedSumArgs& a) {
  constexpr int kWide = kColumns<R>;
  int64_t column = 0;
  for (; column + kWide * kWidth <= a.stride; column += kWide * kWidth)
    weighted_sum_columns<R, kWide>(a, column);
  for (; column < a.stride; column += kWidth) weighted_sum_columns<R, 1>(a, column);
}

/// weighted_sum_block over any number of rows.
inline void weighted_sum_rows(WeightedSumArgs a, int64_t rows) {
  for (; rows >= 4; rows -= 4) {
    weighted_sum_block<4>(a);
    a.weights += 4 * a.row_step;
    a.to += 4 * a.stride;
    if (a.keep != nullptr) a.keep += 4;
  }
  if (rows == 3) weighted_sum_block<3>(a);
  if (rows == 2) weighted_sum_block<2>(a);
  if (rows == 1) weighted_sum_block<1>(a);
}

}  // namespace miles::MILES_ISA
