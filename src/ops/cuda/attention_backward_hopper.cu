// Attention's backward on Hopper: backward_keys and backward_queries of attention_backward.cu with
// warps that copy and groups of four warps that multiply. A product's result is the next one's
// operand in registers, and while one tile's products run, another's weights are computed. Where
// there is room for the gradients of scores, backward_keys keeps them and sum_queries
// (attention_backward_ds.cu) takes backward_queries' place.
#include "ops/cuda/attention_ds.cuh"
#include "ops/cuda/attention_hopper.h"

namespace miles::cuda {
namespace {

using namespace attention_gradient;

/// Of both kernels: two tiles that stay for each group, and a ring of slots of two tiles.
template <int kD, int kExtra, int kMultiply>
struct Shape {
  static constexpr int kGroups = kMultiply;
  static constexpr int kThreads = kCopyThreads + kGroups * 128;
  static constexpr int kRows = kGroups * kTileRows;
  static constexpr int kStages = 4;
  using Slots = Ring<kStages, kGroups>;
  static constexpr int kSlotsAt = kGroups * 2 * kTile<kD>;
  static constexpr int kExtraAt = kSlotsAt + kStages * 2 * kTile<kD>;
  static constexpr int kRingAt = kExtraAt + kStages * kExtra;
  static constexpr int kBytes = kRingAt + Slots::kBytes;
  __device__ static uint32_t slot(uint32_t shared, int tile) {
    return shared + kSlotsAt + tile % kStages * 2 * kTile<kD>;
  }
};
template <int kD>
using KeyShape = Shape<kD, kTileRows * sizeof(float2), 2>;  // of rows; with their statistics
template <int kD>
using QueryShape = Shape<kD, 0, kD == 64 ? 3 : 2>;  // of keys

#ifdef MILES_HOPPER

template <int kD>
__device__ void copy_row_tiles(const Backward& f, const Part& part, int first_row, int tiles,
                               unsigned char* shared_bytes,
                               const typename KeyShape<kD>::Slots& ring) {
  using S = KeyShape<kD>;
  const TileCopy<kD> copy(threadIdx.x);
  const uint32_t shared = shared_address(shared_bytes);
  const bf16* const from[] = {f.q, f.dout};
  for (int tile = 0; tile < tiles; ++tile) {
    const int begin = first_row + tile * kTileRows, row = begin + copy.row_of_lane();
    const int place = row < part.rows ? static_cast<int>(part.row_at(f, row)) : -1;
    ring.wait_empty(tile);
    copy.copy(S::slot(shared, tile), from, place, kD, begin + kTileRows <= part.rows);
    if (threadIdx.x < kTileRows) {
      const int own = begin + static_cast<int>(threadIdx.x);
      const bool exists = own < part.rows;
      copy_async_8(shared + S::kExtraAt + (tile % S::kStages * kTileRows + threadIdx.x) * 8,
                   part.statistics + (exists ? own : 0), exists);
    }
    barrier_arrive_copied(ring.full(tile));
  }
  copy_async_wait<0>();
}

/// dk and dv of a group's 64 keys. Fragments have keys as rows: Sᵀ = K·Qᵀ. With kKept the gradients
/// of scores go to `kept`, the sequence's tiles of them.
template <int kD, bool kKept>
__device__ void differentiate_keys(const Backward& f, const Part& part, int group, int block_begin,
                                   int tiles, unsigned char* kept, unsigned char* shared_bytes,
                                   const typename KeyShape<kD>::Slots& ring) {
  using S = KeyShape<kD>;
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32, warp = thread / 32;
  const uint32_t shared = shared_address(shared_bytes);
  const uint32_t k = shared + group * 2 * kTile<kD>, v = k + kTile<kD>;
  const int key_begin = block_begin + group * kTileRows;  // this group's first key
  const auto place_of = [&](int key) {
    return key_begin + key < part.tokens ? part.begin + key_begin + key : -1;
  };
  // 64 keys are group tiles of rows further.
  const int first = uniform(key_begin < part.tokens ? group * f.group : tiles);
  {
    const TileCopy<kD> copy(thread);
    const bf16* const pool[] = {f.k + part.kv_head * kD, f.v + part.kv_head * kD};
    copy.copy(k, pool, place_of(copy.row_of_lane()), f.kv_heads * kD, false);
    copy_async_commit();
    copy_async_wait<0>();
    show_to_products();
    group_sync(group);
  }
  int tile = 0;
  for (; tile < first; ++tile) ring.pass(tile);
  if (tile == tiles) return;

  float dk[kD / 8][4] = {}, dv[kD / 8][4] = {}, s[8][4], dp[8][4];
  const int key = key_begin + warp * 16 + lane / 4;
  ring.wait_full(tile);
  for (; tile < tiles; ++tile) {
    const uint32_t q = S::slot(shared, tile), dout = q + kTile<kD>;
    start_rows<kD>(s, k, q);
    products_wait<1>();  // for dv and dk of the tile before
    if (tile > first) ring.release(tile - 1);
    start_rows<kD>(dp, v, dout);
    const auto* const statistics = reinterpret_cast<const float4*>(shared_bytes + S::kExtraAt) +
                                   tile % S::kStages * (kTileRows / 2) + lane % 4;
    const int row = block_begin * f.group + tile * kTileRows;
    const bool whole = row >= (key_begin + kTileRows - 1) * f.group && row + kTileRows <= part.rows;
    const int column = row + lane % 4 * 2;
    const auto visible = [&](int n, int i) {
      const int r = column + n * 8 + i % 2;
      return r >= (key + i / 2 * 8) * f.group && r < part.rows;
    };
    products_wait<1>();
    hold(s);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float4 pair = statistics[n * 4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[n][i] = exp2_fast(fmaf(s[n][i], f.scale_log2, -(i % 2 ? pair.z : pair.x)));
    }
    if (!whole)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (!visible(n, i)) s[n][i] = 0;
    // Here, for its branch keeps the compiler from leaving the weights for after the next wait.
    ring.wait_full(min(tile + 1, tiles - 1));
    hold(s);
    products_wait<0>();
    hold(dp);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float4 pair = statistics[n * 4];
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = s[n][i] * (dp[n][i] - (i % 2 ? pair.w : pair.y));
    }
    if (!whole)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (!visible(n, i)) dp[n][i] = 0;
    // Packed before either is used: the compiler waits for all products before it lets one's
    // operand be written.
    uint32_t p[4][4], ds[4][4];
    pack_weights<8>(p, s);
    pack_weights<8>(ds, dp);
    ready(ds);
    start_weights<kD>(dv, p, dout);
    start_weights<kD>(dk, ds, q);
    if constexpr (kKept) {
      const int row_tile = block_begin / kTileRows * f.group + tile;
      const int64_t at = ds_tiles_before(row_tile, f.group) + block_begin / kTileRows + group;
      keep_ds(ds, kept + at * kDsTile, thread);
    }
  }
  products_wait<0>();
  hold(dv);
  hold(dk);
  group_sync(group);  // every warp is done with the keys, where the results go by
  const int place = place_of(warp * 16 + lane % 16), stride = f.kv_heads * kD;
  unsigned char* const staging = shared_bytes + group * 2 * kTile<kD> + warp * 16 * 128;
  write_rows<kD>(dk, {f.scale, f.scale}, staging, f.dk + part.kv_head * kD, place, stride);
  write_rows<kD>(dv, {1, 1}, staging + kTile<kD>, f.dv + part.kv_head * kD, place, stride);
}

template <int kD>
__device__ void copy_key_tiles(const Backward& f, const Part& part, int seen, uint32_t shared,
                               const typename QueryShape<kD>::Slots& ring) {
  const TileCopy<kD> copy(threadIdx.x);
  const bf16* const pool[] = {f.k + part.kv_head * kD, f.v + part.kv_head * kD};
  for (int tile = 0; tile * kTileRows < seen; ++tile) {
    const int key = tile * kTileRows + copy.row_of_lane();
    ring.wait_empty(tile);
    copy.copy(QueryShape<kD>::slot(shared, tile), pool, key < seen ? part.begin + key : -1,
              f.kv_heads * kD, (tile + 1) * kTileRows <= seen);
    barrier_arrive_copied(ring.full(tile));
  }
  copy_async_wait<0>();
}

/// dq of a group's 64 rows.
template <int kD>
__device__ void differentiate_queries(const Backward& f, const Part& part, int group,
                                      int block_begin, int tiles, unsigned char* shared_bytes,
                                      const typename QueryShape<kD>::Slots& ring) {
  using S = QueryShape<kD>;
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32, warp = thread / 32;
  const uint32_t shared = shared_address(shared_bytes);
  const uint32_t q_tile = shared + group * 2 * kTile<kD>;
  const int begin = block_begin + group * kTileRows;  // this group's first row
  const int last = begin < part.rows ? (min(begin + kTileRows, part.rows) - 1) / f.group : -1;
  const int count = uniform(min(last / kTileRows + (last >= 0), tiles));
  const auto place_of = [&](int row) {
    return begin + row < part.rows ? static_cast<int>(part.row_at(f, begin + row)) : -1;
  };
  {
    const TileCopy<kD> copy(thread);
    const bf16* const from[] = {f.q, f.dout};
    copy.copy(q_tile, from, place_of(copy.row_of_lane()), kD, false);
    copy_async_commit();
    copy_async_wait<0>();
    show_to_products();
    group_sync(group);
  }
  float2 statistics[2];
  int token[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = begin + warp * 16 + half * 8 + lane / 4;
    statistics[half] = row < part.rows ? part.statistics[row] : make_float2(0, 0);
    token[half] = row < part.rows ? row / f.group : -1;
  }
  const int whole = uniform(min((begin / f.group + 1) / kTileRows, count));
  float dq[kD / 8][4] = {}, s[8][4], dp[8][4];
  int tile = 0;
  ring.wait_full(0);
  for (; tile < count; ++tile) {
    const uint32_t k = S::slot(shared, tile);
    start_rows<kD>(s, q_tile, k);
    start_rows<kD>(dp, q_tile + kTile<kD>, k + kTile<kD>);
    products_wait<1>();  // for dq of the tile before too
    hold(s);
    if (tile > 0) ring.release(tile - 1);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[n][i] = exp2_fast(fmaf(s[n][i], f.scale_log2, -statistics[i / 2].x));
    // Here, for its branch keeps the compiler from leaving the weights for after the next wait.
    ring.wait_full(min(tile + 1, tiles - 1));
    hold(s);
    products_wait<0>();
    hold(dp);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = s[n][i] * (dp[n][i] - statistics[i / 2].y);
    if (tile >= whole)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (tile * kTileRows + n * 8 + lane % 4 * 2 + i % 2 > token[i / 2]) dp[n][i] = 0;
    uint32_t ds[4][4];
    pack_weights<8>(ds, dp);
    start_weights<kD>(dq, ds, k);
  }
  products_wait<0>();
  hold(dq);
  if (tile > 0) ring.release(tile - 1);
  for (; tile < tiles; ++tile) ring.pass(tile);
  group_sync(group);  // every warp is done with q, where the results go by
  write_rows<kD>(dq, {f.scale, f.scale}, shared_bytes + group * 2 * kTile<kD> + warp * 16 * 128,
                 f.dq, place_of(warp * 16 + lane % 16), kD);
}

#endif

template <int kD, bool kKept>
__global__ void __launch_bounds__(KeyShape<kD>::kThreads, 1) backward_keys(const Backward f) {
#ifdef MILES_HOPPER
  using S = KeyShape<kD>;
  extern __shared__ __align__(1024) unsigned char shared[];
  // The first keys of a sequence have the most rows: first.
  const RowBlock at =
      find_block(f.query_begin, f.sequences, 1, S::kRows, static_cast<int>(blockIdx.x));
  const Part part(f, at.sequence);
  const int begin = at.block * S::kRows;
  if (begin >= part.tokens) return;
  const int tiles = (part.rows - begin * f.group + kTileRows - 1) / kTileRows;
  const typename S::Slots ring = {shared_address(shared) + S::kRingAt};
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  if (threadIdx.x < kCopyThreads) {
    leave_registers<24>();
    copy_row_tiles<kD>(f, part, begin * f.group, tiles, shared, ring);
  } else {
    take_registers<240>();
    const int group = uniform(static_cast<int>(threadIdx.x) / 128 - 1);
    differentiate_keys<kD, kKept>(f, part, group, uniform(begin), uniform(tiles),
                                  kKept ? ds_tiles_of(f, at.sequence) : nullptr, shared, ring);
  }
#endif
}

template <int kD>
__global__ void __launch_bounds__(QueryShape<kD>::kThreads, 1) backward_queries(const Backward f) {
#ifdef MILES_HOPPER
  using S = QueryShape<kD>;
  extern __shared__ __align__(1024) unsigned char shared[];
  // The last rows of a sequence see the most keys: first.
  const RowBlock at = find_block(f.query_begin, f.sequences, f.group, S::kRows,
                                 static_cast<int>(gridDim.x - 1 - blockIdx.x));
  const Part part(f, at.sequence);
  const int begin = at.block * S::kRows;
  if (begin >= part.rows) return;
  const int seen = (min(begin + S::kRows, part.rows) - 1) / f.group + 1;
  const typename S::Slots ring = {shared_address(shared) + S::kRingAt};
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  if (threadIdx.x < kCopyThreads) {
    leave_registers<(S::kGroups == 2 ? 40 : 32)>();
    copy_key_tiles<kD>(f, part, seen, shared_address(shared), ring);
  } else {
    take_registers<(S::kGroups == 2 ? 232 : 160)>();
    const int group = uniform(static_cast<int>(threadIdx.x) / 128 - 1);
    differentiate_queries<kD>(f, part, group, uniform(begin),
                              uniform((seen + kTileRows - 1) / kTileRows), shared, ring);
  }
#endif
}

template <int kD, bool kKept>
void launch_keys(const Backward& f, int heads, cudaStream_t stream) {
  using Keys = KeyShape<kD>;
  static_assert(Keys::kBytes <= kHopperShared);
  allow_shared<backward_keys<kD, kKept>>(Keys::kBytes);
  backward_keys<kD, kKept>
      <<<dim3(row_blocks(f.rows / f.group, f.sequences, Keys::kRows), static_cast<unsigned>(heads)),
         Keys::kThreads, Keys::kBytes, stream>>>(f);
  check_launch("attention_backward of keys");
}

template <int kD>
void launch(const Backward& f, int heads, cudaStream_t stream) {
  if constexpr (kD == kDsDim)
    if (f.ds != nullptr) {
      launch_keys<kD, true>(f, heads, stream);
      return sum_queries(f, heads, stream);
    }
  launch_keys<kD, false>(f, heads, stream);
  using Queries = QueryShape<kD>;
  static_assert(Queries::kBytes <= kHopperShared);
  allow_shared<backward_queries<kD>>(Queries::kBytes);
  backward_queries<kD>
      <<<dim3(row_blocks(f.rows, f.sequences, Queries::kRows), static_cast<unsigned>(heads)),
         Queries::kThreads, Queries::kBytes, stream>>>(f);
  check_launch("attention_backward of queries");
}

}  // namespace

void attention_backward_hopper(const Backward& f, int heads, cudaStream_t stream) {
  if (f.dim == 64)
    launch<64>(f, heads, stream);
  else
    launch<128>(f, heads, stream);
}

}  // namespace miles::cuda
