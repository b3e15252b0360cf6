// dq on Hopper from the gradients of scores that backward_keys has kept: dq = scale · ds · k.
// It waits for memory, not for products: each tile is read once, and its keys once for 256 rows.
#include <algorithm>

#include "ops/cuda/attention_ds.cuh"
#include "ops/cuda/attention_hopper.h"

namespace miles::cuda {
namespace {

using namespace attention_gradient;

/// Two groups of warps that multiply, each with two tiles of rows; a slot of the ring has the
/// block's four tiles of ds and the keys.
struct SumShape {
  static constexpr int kGroups = 2, kTiles = 2;  // of a group
  static constexpr int kRowTiles = kGroups * kTiles;
  static constexpr int kThreads = kCopyThreads + kGroups * 128;
  static constexpr int kRows = kRowTiles * kTileRows;
  static constexpr int kStages = 4;
  using Slots = Ring<kStages, kGroups>;
  static constexpr int kKeysAt = kRowTiles * kDsTile;  // in a slot
  static constexpr int kSlot = kKeysAt + kTile<kDsDim>;
  static constexpr int kStagingAt = kStages * kSlot;  // results on their way, a tile a group
  static constexpr int kRingAt = kStagingAt + kGroups * kTile<kDsDim>;
  static constexpr int kBytes = kRingAt + Slots::kBytes;
  __device__ static uint32_t slot(uint32_t shared, int tile) {
    return shared + tile % kStages * kSlot;
  }
};

#ifdef MILES_HOPPER

/// A block's rows.
struct Rows {
  int first_tile;  // of its row tiles, in the sequence
  int tiles;       // of keys that any of them sees

  /// Tiles of keys that a row tile sees; 0 beyond the last row.
  __device__ static int seen(const Backward& f, const Part& part, int row_tile) {
    return row_tile * kTileRows < part.rows ? row_tile / f.group + 1 : 0;
  }
};

__device__ void copy_tiles(const Backward& f, const Part& part, const Rows& rows,
                           const unsigned char* ds, uint32_t shared, const SumShape::Slots& ring) {
  using S = SumShape;
  const TileCopy<kDsDim> copy(threadIdx.x);
  const bf16* const keys[] = {f.k + part.kv_head * kDsDim};
  const unsigned char* from[S::kRowTiles];
  int seen[S::kRowTiles];
#pragma unroll
  for (int i = 0; i < S::kRowTiles; ++i) {
    seen[i] = Rows::seen(f, part, rows.first_tile + i);
    from[i] = ds + ds_tiles_before(rows.first_tile + i, f.group) * kDsTile + threadIdx.x * 16;
  }
  for (int tile = 0; tile < rows.tiles; ++tile) {
    const int key = tile * kTileRows + copy.row_of_lane();
    const uint32_t slot = S::slot(shared, tile);
    ring.wait_empty(tile);
#pragma unroll
    for (int i = 0; i < S::kRowTiles; ++i) {
      if (tile >= seen[i]) continue;
#pragma unroll
      for (int at = 0; at < kDsTile; at += kCopyThreads * 16)
        copy_async_16(slot + i * kDsTile + at + threadIdx.x * 16,
                      from[i] + int64_t{tile} * kDsTile + at, true);
    }
    copy.copy(slot + S::kKeysAt, keys, key < part.tokens ? part.begin + key : -1,
              f.kv_heads * kDsDim, (tile + 1) * kTileRows <= part.tokens);
    barrier_arrive_copied(ring.full(tile));
  }
  copy_async_wait<0>();
}

/// dq of a group's two tiles of rows, of which the second sees as many tiles of keys as the first
/// or one more.
__device__ void sum(const Backward& f, const Part& part, const Rows& rows, int group,
                    unsigned char* shared_bytes, const SumShape::Slots& ring) {
  using S = SumShape;
  const uint32_t shared = shared_address(shared_bytes);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, mine = group * S::kTiles;
  const int first = uniform(Rows::seen(f, part, rows.first_tile + mine));
  const int second = uniform(Rows::seen(f, part, rows.first_tile + mine + 1));
  const int count = max(first, second);
  // Without a second tile the first one's sums are made alone, last.
  float dq[S::kTiles][kDsDim / 8][4] = {};
  int tile = 0;
  for (; tile < min(first, second); ++tile) {
    ring.wait_full(tile);
    const uint32_t ds = S::slot(shared, tile) + mine * kDsTile;
    start_columns(dq[0], ds, S::slot(shared, tile) + S::kKeysAt);
    start_columns(dq[1], ds + kDsTile, S::slot(shared, tile) + S::kKeysAt);
    products_wait<2>();
    if (tile > 0) ring.release(tile - 1);
  }
  products_wait<0>();
  hold(dq[0]);
  hold(dq[1]);
  if (tile > 0) ring.release(tile - 1);
  const int alone = first > second ? 0 : 1;
  for (; tile < count; ++tile) {
    ring.wait_full(tile);
    const uint32_t ds = S::slot(shared, tile) + (mine + alone) * kDsTile;
    const uint32_t keys = S::slot(shared, tile) + S::kKeysAt;
    if (alone == 0)
      start_columns(dq[0], ds, keys);
    else
      start_columns(dq[1], ds, keys);
    products_wait<0>();
    hold(dq[0]);
    hold(dq[1]);
    ring.release(tile);
  }
  for (; tile < rows.tiles; ++tile) ring.pass(tile);
#pragma unroll
  for (int i = 0; i < S::kTiles; ++i) {
    const int row = (rows.first_tile + mine + i) * kTileRows + row_of_ds(warp * 16 + lane % 16);
    const int place = row < part.rows ? static_cast<int>(part.row_at(f, row)) : -1;
    __syncwarp();  // the last tile's results have been read
    write_rows<kDsDim>(dq[i], {f.scale, f.scale},
                       shared_bytes + S::kStagingAt + group * kTile<kDsDim> + warp * 16 * 128, f.dq,
                       place, kDsDim);
  }
}

#endif

__global__ void __launch_bounds__(SumShape::kThreads, 1) sum_queries_kernel(const Backward f) {
#ifdef MILES_HOPPER
  using S = SumShape;
  extern __shared__ __align__(1024) unsigned char shared[];
  // The last rows of a sequence see the most keys: first.
  const RowBlock at = find_block(f.query_begin, f.sequences, f.group, S::kRows,
                                 static_cast<int>(gridDim.x - 1 - blockIdx.x));
  const Part part(f, at.sequence);
  if (at.block * S::kRows >= part.rows) return;
  Rows rows = {.first_tile = at.block * S::kRowTiles, .tiles = 0};
#pragma unroll
  for (int i = 0; i < S::kRowTiles; ++i)
    rows.tiles = max(rows.tiles, Rows::seen(f, part, rows.first_tile + i));
  const S::Slots ring = {shared_address(shared) + S::kRingAt};
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  if (threadIdx.x < kCopyThreads) {
    leave_registers<56>();
    copy_tiles(f, part, rows, ds_tiles_of(f, at.sequence), shared_address(shared), ring);
  } else {
    take_registers<224>();
    sum(f, part, rows, uniform(static_cast<int>(threadIdx.x) / 128 - 1), shared, ring);
  }
#endif
}

}  // namespace

int attention_gradient::plan_ds(Backward& f, const AttentionBackwardArgs& args, int most) {
  if (!args.scratch || args.longest <= 0 || f.dim != kDsDim || !has_hopper_kernels()) return most;
  const int64_t tiles = most_ds_tiles(f.rows / f.group, f.sequences, args.longest, f.group);
  const int64_t held = std::min<int64_t>(most, args.scratch.bytes() / (tiles * kDsTile));
  const int64_t blocks = held * row_blocks(f.rows, f.sequences, SumShape::kRows);
  if (held < f.kv_heads && blocks < 2 * multiprocessors()) return most;
  f.ds = static_cast<unsigned char*>(args.scratch.data());
  f.ds_tiles = tiles;
  const int64_t launches = (f.kv_heads + held - 1) / held;  // of about the same size
  return static_cast<int>((f.kv_heads + launches - 1) / launches);
}

void attention_gradient::sum_queries(const Backward& f, int heads, cudaStream_t stream) {
  using S = SumShape;
  static_assert(S::kBytes <= kHopperShared);
  allow_shared<sum_queries_kernel>(S::kBytes);
  sum_queries_kernel<<<dim3(row_blocks(f.rows, f.sequences, S::kRows),
                            static_cast<unsigned>(heads)),
                       S::kThreads, S::kBytes, stream>>>(f);
  check_launch("attention_backward's sum of queries");
}

}  // namespace miles::cuda
