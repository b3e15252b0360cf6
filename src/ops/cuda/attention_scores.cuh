// Gradients of scores, between two kernels of attention's backward on Hopper: backward_keys leaves
// them behind for sum_queries, whose dq is then one product instead of three. They are rounded
// where backward_queries rounds its own, so the bits are the same either way.
//
// They lie in tiles of 64 keys by 64 rows as attention_wgmma.cuh wants them in shared memory, with
// rows, (token, head of the group), as columns, in an order of their own. Row tile R of a sequence sees the key tiles 0 …
// R / group: so many tiles it has, one row tile's after the other's, one sequence's after the
// other's.
#pragma once

#include "ops/cuda/attention_gradient.cuh"
#include "ops/cuda/attention_warpgroup.cuh"

namespace miles::cuda::attention_gradient {

/// Of heads. Where they are half as large, a score costs as much to keep and half as much to make:
/// 64 were slower by a ninth.
inline constexpr int kScoresDim = 128;
inline constexpr int kScoreTile = kHalfTile;  // bytes: 64 × 64 bf16

/// Tiles of a sequence before its row tile's.
__host__ __device__ inline int64_t score_tiles_before(int64_t row_tile, int64_t group) {
  const int64_t whole = row_tile / group;
  return group * (whole * (whole + 1) / 2) + row_tile % group * (whole + 1);
}

/// No fewer than a key head has, of `tokens` in `sequences` of at most `longest`. For t tokens a
/// sequence has group · T · (T + 1) / 2 with T = ⌈t / 64⌉ < t / 64 + 1.
inline int64_t most_score_tiles(int64_t tokens, int64_t sequences, int64_t longest, int64_t group) {
  const auto tiles = [](int64_t t) { return t / kTileRows + 1; };
  return group * (tiles(longest) * tiles(tokens) + 3 * tiles(tokens) + 2 * sequences) / 2;
}

/// Where a sequence's tiles of this block's key head begin. All lanes of a warp call it.
__device__ inline unsigned char* score_tiles_of(const Backward& f, int sequence) {
  int64_t before = 0;
  for (int b = static_cast<int>(threadIdx.x) % 32; b < sequence; b += 32) {
    const int64_t tokens = f.query_begin[b + 1] - f.query_begin[b];
    before += score_tiles_before((tokens + kTileRows - 1) / kTileRows * f.group, f.group);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    before += __shfl_xor_sync(kAllLanes, before, distance);
  return f.scores + (blockIdx.y * f.score_tiles + before) * kScoreTile;
}

/// Which of its 64 rows a tile has as column `column`. In this order a thread's fragments are whole
/// chunks of 16 bytes, so they need no way through shared memory, which the products keep busy.
__device__ inline int row_of_score(int column) {
  return column / 32 * 32 + column % 8 / 2 * 8 + column / 8 % 4 * 2 + column % 2;
}

/// A thread's part of a tile, from its fragments; `thread` is that of the group of four warps.
__device__ inline void keep_scores(const uint32_t (&ds)[4][4], unsigned char* tile, int thread) {
  const int key = thread / 32 * 16 + thread % 32 / 4, chunk = thread % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // of the rows
    const auto &left = ds[2 * half], &right = ds[2 * half + 1];
#pragma unroll
    for (int i = 0; i < 2; ++i)  // the key, and the one eight further
      *reinterpret_cast<uint4*>(tile + (key + 8 * i) * 128 +
                                (((4 * half + chunk) ^ key % 8) << 4)) =
          make_uint4(left[i], left[2 + i], right[i], right[2 + i]);
  }
}

/// dq of the launch's key heads, whose gradients of scores are there.
void sum_queries(const Backward& f, int heads, cudaStream_t stream);

}  // namespace miles::cuda::attention_gradient
