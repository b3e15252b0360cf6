// Tiles of bf16 rows in shared memory, and the two products over them that attention is made of.
// A row of kD elements is kD / 8 chunks of 16 bytes; chunk i of row r lies at place i ^ (r % 8), so
// that a matrix load's eight rows touch all banks once. Tiles start at multiples of 1024 bytes.
#pragma once

#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/shared_memory.h"

namespace miles::cuda {

template <int kD>
inline constexpr int kRowBytes = kD * 2;

/// Copies rows [0, kRows) of tiles that follow each other, one a tensor: `at(row)` is a row's first
/// element in all of them, or negative for a row of zeros. Elements from `dim` on are zeros. Every
/// thread of the block calls it.
template <int kRows, int kD, int kThreads, int kTensors, class At>
__device__ inline void load_rows(uint32_t tiles, const bf16* const (&from)[kTensors], int dim,
                                 At&& at) {
  constexpr int kChunks = kD / 8;
  static_assert(kThreads % kChunks == 0 && (kRows * kChunks) % kThreads == 0);
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int first = static_cast<int>(threadIdx.x) / kChunks;
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int row = first + i * (kThreads / kChunks);
    const int64_t offset = at(row);
    const bool valid = offset >= 0 && chunk * 8 < dim;
#pragma unroll
    for (int t = 0; t < kTensors; ++t)
      copy_async_16(tiles + (t * kRows + row) * kRowBytes<kD> + ((chunk ^ (row & 7)) << 4),
                    from[t] + (valid ? offset + chunk * 8 : 0), valid);
  }
}

/// This lane's address for matrices (rows 0–7, 8–15) × (chunks 0, 1), rows first: an A operand, or,
/// transposed, a B operand whose rows are the summed index.
/// Rows 16·i further are i · 16 · kRowBytes away, chunks 2·i further are ^ (i << 5).
template <int kD>
__device__ inline uint32_t lane_rows(uint32_t tile, int lane) {
  return tile + (lane & 15) * kRowBytes<kD> + ((((lane >> 4) & 1) ^ (lane & 7)) << 4);
}
/// The same, chunks first: a B operand whose columns are the tile's rows.
template <int kD>
__device__ inline uint32_t lane_columns(uint32_t tile, int lane) {
  return tile + ((lane & 7) + ((lane >> 4) << 3)) * kRowBytes<kD> +
         ((((lane >> 3) & 1) ^ (lane & 7)) << 4);
}

/// c += A · Bᵀ for kM·16 rows of A and kN·8 rows of B, summed over kD: `a` from lane_rows, `b` from
/// lane_columns. An element of c depends on its two rows alone, sixteen products at a time,
/// ascending.
template <int kM, int kN, int kD>
__device__ inline void multiply_rows(float (&c)[kM][kN][4], uint32_t a, uint32_t b) {
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_matrices(left[m], (a ^ (k << 5)) + m * 16 * kRowBytes<kD>);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t right[4];
      load_matrices(right, (b ^ (k << 5)) + n * 8 * kRowBytes<kD>);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma(c[m][n], left[m], right[0], right[1]);
        mma(c[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

/// c += W · T for weights W of kM·16 rows and kK·16 columns in registers, and kK·16 rows of a tile
/// T, of which kN·8 columns are taken: `t` from lane_rows. Sixteen products at a time, ascending.
template <int kM, int kN, int kK, int kD>
__device__ inline void multiply_weights(float (&c)[kM][kN][4], const uint32_t (&w)[kM][kK][4],
                                        uint32_t t) {
#pragma unroll
  for (int k = 0; k < kK; ++k)
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t right[4];
      load_matrices_transposed(right, (t ^ (n << 4)) + k * 16 * kRowBytes<kD>);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma(c[m][n], w[m][k], right[0], right[1]);
        mma(c[m][n + 1], w[m][k], right[2], right[3]);
      }
    }
}

/// The weights of a product from the result of another: columns become the summed index.
template <int kN>
__device__ inline void pack_weights(uint32_t (&w)[kN / 2][4], const float (&c)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    w[n / 2][n % 2 * 2] = pack_bf16(c[n][0], c[n][1]);
    w[n / 2][n % 2 * 2 + 1] = pack_bf16(c[n][2], c[n][3]);
  }
}

/// A block of one sequence's rows, and how the grid is cut into them without knowing the lengths:
/// sequence b owns the blocks from ⌊rows before it / kBlock⌋ + b on. That is never too few (⌊x + n⌋
/// ≥ ⌊x⌋ + ⌊n⌋, plus one), and ⌊all rows / kBlock⌋ + sequences is how many there are in all.
struct RowBlock {
  int sequence, block;
};
inline unsigned row_blocks(int64_t rows, int64_t sequences, int block_rows) {
  return static_cast<unsigned>(rows / block_rows + sequences);
}
__device__ inline RowBlock find_block(const int32_t* query_begin, int sequences, int group,
                                      int block_rows, int index) {
  const auto first = [&](int b) {
    return static_cast<int>(int64_t{query_begin[b]} * group / block_rows) + b;
  };
  int low = 0, high = sequences;  // first(low) ≤ index < first(high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first(middle) <= index ? low : high) = middle;
  }
  return {low, index - first(low)};
}

}  // namespace miles::cuda
