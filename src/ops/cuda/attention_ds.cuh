// Gradients of scores, ds, between two kernels of attention's backward on Hopper: backward_keys
// leaves them behind for sum_queries, whose dq is then one product instead of three. They are
// rounded where backward_queries rounds its own, so the bits are the same either way. Where their
// tiles lie: ds_tiles.h. A tile is what attention_wgmma.cuh wants in shared memory, 64 keys of 64
// rows, in an order of its own.
#pragma once

#include "ops/attention.h"
#include "ops/cuda/attention_gradient.cuh"
#include "ops/cuda/attention_warpgroup.cuh"
#include "ops/cuda/ds_tiles.h"

namespace miles::cuda::attention_gradient {

/// Elements of a head. With 64 a ds costs as much to keep and half as much to make: that was slower
/// by a ninth.
inline constexpr int kDsDim = 128;
inline constexpr int kDsTile = kHalfTile;  // bytes: 64 × 64 bf16
static_assert(kDsRows == kTileRows);

/// Where a sequence's tiles of this block's key head begin. All lanes of a warp call it.
__device__ inline unsigned char* ds_tiles_of(const Backward& f, int sequence) {
  const auto tokens = [&](int b) { return int64_t{f.query_begin[b + 1]} - f.query_begin[b]; };
  int64_t before = 0;
  for (int b = static_cast<int>(threadIdx.x) % 32; b < sequence; b += 32)
    before += ds_tiles(tokens(b), f.group);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    before += __shfl_xor_sync(kAllLanes, before, distance);
  // A sequence is longer than the caller said: before anything is written where nothing may be.
  if (before + ds_tiles(tokens(sequence), f.group) > f.ds_tiles) __trap();
  return f.ds + (blockIdx.y * f.ds_tiles + before) * kDsTile;
}

/// Which of its 64 rows a tile has as column `column`. In this order a thread's fragments are whole
/// chunks of 16 bytes, so they need no way through shared memory, which the products keep busy.
__device__ inline int row_of_ds(int column) {
  return column / 32 * 32 + column % 8 / 2 * 8 + column / 8 % 4 * 2 + column % 2;
}

/// A thread's part of a tile, from its fragments; `thread` is that of the group of four warps.
__device__ inline void keep_ds(const uint32_t (&ds)[4][4], unsigned char* tile, int thread) {
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

/// Has `f` keep ds in the scratch, when that holds those of enough key heads to keep the device
/// busy. Returns how many key heads to launch at a time, of the `most` that could be.
int plan_ds(Backward& f, const AttentionBackwardArgs& args, int most);
/// dq of the launch's key heads, whose ds are there.
void sum_queries(const Backward& f, int heads, cudaStream_t stream);

}  // namespace miles::cuda::attention_gradient
