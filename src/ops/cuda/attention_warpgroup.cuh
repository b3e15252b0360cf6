// What Hopper's kernels of attention share beside the ring of tiles: copying them, the products
// over them, and writing results.
#pragma once

#include "ops/cuda/attention_ring.cuh"
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/attention_wgmma.cuh"

namespace miles::cuda {

inline constexpr int kTileRows = 64;        // of a tile, and of a group of warps that multiply
inline constexpr int kHalfTile = 64 * 128;  // bytes of 64 columns of a tile
template <int kD>
inline constexpr int kTile = kD / 64 * kHalfTile;

/// Copies of tiles of 64 rows, one a tensor and one after the other, by kCopyThreads threads. A
/// warp has 16 rows of a tile, and lane l looks up the place of row_of_lane(); the others ask it.
/// Places are `stride` elements apart; a negative one is a row of zeros.
template <int kD>
struct TileCopy {
  static constexpr int kChunks = kD / 8, kPerWarp = 32 / kChunks, kPerPass = 4 * kPerWarp;
  int lane, warp;
  __device__ explicit TileCopy(int thread) : lane(thread % 32), warp(thread / 32) {}
  __device__ int row_of_lane() const {
    const int l = lane % 16;
    return l / kPerWarp * kPerPass + warp * kPerWarp + l % kPerWarp;
  }
  template <int kTensors>
  __device__ void copy(uint32_t tile, const bf16* const (&from)[kTensors], int place, int stride,
                       bool all_exist) const {
    const int chunk = lane % kChunks, first = warp * kPerWarp + lane / kChunks;
    const uint32_t to = tile + chunk / 8 * kHalfTile + first * 128 + ((chunk ^ first) % 8 << 4);
    const auto copy_all = [&](auto valid) {
#pragma unroll
      for (int i = 0; i < kTileRows / kPerPass; ++i) {
        const int p = __shfl_sync(kAllLanes, place, lane / kChunks + i * kPerWarp);
        const int64_t offset = int64_t{valid(p) ? p : 0} * stride;
#pragma unroll
        for (int t = 0; t < kTensors; ++t)
          copy_async_16(to + i * kPerPass * 128 + t * kTile<kD>, from[t] + chunk * 8 + offset,
                        valid(p));
      }
    };
    if (all_exist)
      copy_all([](int) { return true; });
    else
      copy_all([](int p) { return p >= 0; });
  }
};

/// c = A · Bᵀ over kD for 64 rows of A, a tile or fragments, and the 64 rows of a tile B;
/// committed.
template <int kD>
__device__ inline void start_rows(float (&c)[8][4], uint32_t a, uint32_t b) {
  const uint32_t left = matrix(a), right = matrix(b);
  hold(c);
  products_begin();
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    const int at = (k / 4 * kHalfTile + k % 4 * 32) >> 4;
    wgmma<false>(c, left + at, right + at, k > 0);
  }
  products_commit();
}
/// c += W · T for weights W of 64 columns and a tile T; committed.
template <int kD>
__device__ inline void start_weights(float (&c)[kD / 8][4], const uint32_t (&w)[4][4], uint32_t t) {
  const uint32_t right = matrix(t, kHalfTile);
  hold(c);
  ready(w);
  products_begin();
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<true>(c, w[k], right + (k * 16 * 128 >> 4), true);
  products_commit();
}
/// c += Aᵀ · T for tiles A, of 64 columns, and T, of 128; committed.
__device__ inline void start_columns(float (&c)[16][4], uint32_t a, uint32_t t) {
  const uint32_t left = matrix(a, kHalfTile), right = matrix(t, kHalfTile);
  hold(c);
  products_begin();
#pragma unroll
  for (int k = 0; k < 4; ++k)
    wgmma_columns(c, left + (k * 16 * 128 >> 4), right + (k * 16 * 128 >> 4));
  products_commit();
}

/// c · scale of a warp's 16 rows, rounded, by way of their place in a tile at `staging`, so that
/// rows are written whole. Lane l brings the place of row l, as for TileCopy; a row without one is
/// not.
template <int kD>
__device__ inline void write_rows(const float (&c)[kD / 8][4], const float (&scale)[2],
                                  unsigned char* staging, bf16* to, int place, int stride) {
  constexpr int kChunks = kD / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, chunk = lane % kChunks;
  const auto in_tile = [&](int row, int n) {
    return staging + n / 8 * kHalfTile + row * 128 + ((n ^ row) % 8 << 4);
  };
#pragma unroll
  for (int n = 0; n < kChunks; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)  // + 0: no negative zeros
      *reinterpret_cast<uint32_t*>(in_tile(half * 8 + lane / 4, n) + lane % 4 * 4) =
          pack_bf16(c[n][half * 2] * scale[half] + 0.0F, c[n][half * 2 + 1] * scale[half] + 0.0F);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; i += 32 / kChunks) {
    const int row = i + lane / kChunks, p = __shfl_sync(kAllLanes, place, row);
    if (p >= 0)
      *reinterpret_cast<uint4*>(to + int64_t{p} * stride + chunk * 8) =
          *reinterpret_cast<const uint4*>(in_tile(row, chunk));
  }
}

}  // namespace miles::cuda
