// Attention's forward for prefill and training on Hopper: the recurrence of attention.cu, its
// softmax on the same fragments, with products of which each is a chain over the same elements in
// the same order; so a row's bits are those of attention_rows, which has the decode.
// A block has 192 rows: four warps copy tiles of keys and values, three groups of four warps have
// 64 rows each. While a group turns one tile's scores into weights, its products of the last
// weights run, and the other groups' products. Source: Shah et al. 2024 (FlashAttention-3).
#include "ops/cuda/attention_forward.cuh"
#include "ops/cuda/attention_hopper.h"
#include "ops/cuda/attention_warpgroup.cuh"

namespace miles::cuda {
namespace {

using namespace attention_forward;

template <int kD>
struct Shape {
  static constexpr int kGroups = 3;
  static constexpr int kThreads = kCopyThreads + kGroups * 128;
  static constexpr int kRows = kGroups * kTileRows;
  static constexpr int kStages = 4;
  using Keys = Ring<kStages, kGroups>;
  static constexpr int kTilesAt = kGroups * kTile<kD>;  // q first
  static constexpr int kRingAt = kTilesAt + kStages * 2 * kTile<kD>;
  static constexpr int kBytes = kRingAt + Keys::kBytes;
  /// Of a tile's slot: its keys; values follow.
  __device__ static uint32_t slot(uint32_t shared, int tile) {
    return shared + kTilesAt + tile % kStages * 2 * kTile<kD>;
  }
};

#ifdef MILES_HOPPER

template <int kD>
__device__ void copy_keys(const Forward& f, const Part& part, int seen, uint32_t shared,
                          const typename Shape<kD>::Keys& ring) {
  const TileCopy<kD> copy(threadIdx.x);
  const int begin = f.pages ? part.sequence * f.pages_per_sequence : f.kv_begin[part.sequence];
  const auto place_of = [&](int tile) {  // a row of the pool
    const int key = tile * kTileRows + copy.row_of_lane();
    if (key >= seen) return -1;
    if (f.pages == nullptr) return begin + key;
    return f.pages[begin + key / f.page_size] * f.page_size + key % f.page_size;
  };
  const int stride = f.kv_heads * kD, head = part.kv_head * kD;
  const bf16* const pool[] = {f.k + head, f.v + head};
  int place = place_of(0);
  for (int tile = 0; tile * kTileRows < seen; ++tile) {
    const int next = place_of(tile + 1);
    ring.wait_empty(tile);
    copy.copy(Shape<kD>::slot(shared, tile), pool, place, stride, (tile + 1) * kTileRows <= seen);
    barrier_arrive_copied(ring.full(tile));
    place = next;
  }
  copy_async_wait<0>();
}

template <int kD>
__device__ void attend(const Forward& f, const Part& part, int group, int block_begin, int tiles,
                       unsigned char* shared_bytes, const typename Shape<kD>::Keys& ring) {
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32, warp = thread / 32;
  const uint32_t shared = shared_address(shared_bytes);
  const uint32_t q_tile = shared + group * kTile<kD>;
  const int begin = block_begin + group * kTileRows;  // this group's first row
  const int last = begin < part.rows ? part.position(f, min(begin + kTileRows, part.rows) - 1) : -1;
  const int count = uniform(min(last / kTileRows + (last >= 0), tiles));
  const int whole = uniform(min((part.position(f, begin) + 1) / kTileRows, count));
  const auto place_of = [&](int row) {
    return begin + row < part.rows ? static_cast<int>(part.at(f, begin + row)) : -1;
  };
  {
    const TileCopy<kD> copy(thread);
    const bf16* const queries[] = {f.q};
    copy.copy(q_tile, queries, place_of(copy.row_of_lane()), kD, false);
    copy_async_commit();
    copy_async_wait<0>();
  }
  show_to_products();
  group_sync(group);
  RowState rows;
  float acc[kD / 8][4] = {}, s[8][4] = {};
  uint32_t w[4][4];
  int tile = 0;
  if (whole > 0) {
    float keep[2];
    ring.wait_full(0);
    start_rows<kD>(s, q_tile, Shape<kD>::slot(shared, 0));
    products_wait<0>();
    hold(s);
    softmax_step(s, rows, keep, f.scale_log2);
    pack_weights<8>(w, s);
    ring.wait_full(min(1, tiles - 1));
    for (tile = 1; tile < whole; ++tile) {
      const uint32_t values = Shape<kD>::slot(shared, tile - 1) + kTile<kD>;
      start_rows<kD>(s, q_tile, Shape<kD>::slot(shared, tile));
      start_weights<kD>(acc, w, values);
      products_wait<1>();
      hold(s);
      softmax_step(s, rows, keep, f.scale_log2);
      // Here, for its branch keeps the compiler from leaving the weights for after the next wait.
      ring.wait_full(min(tile + 1, tiles - 1));
      hold(s);
      products_wait<0>();
      hold(acc);
      ready(w);
      ring.release(tile - 1);
      rescale(acc, keep);
      pack_weights<8>(w, s);
    }
    start_weights<kD>(acc, w, Shape<kD>::slot(shared, tile - 1) + kTile<kD>);
    products_wait<0>();
    hold(acc);
    ring.release(tile - 1);
  }
  int position[1][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = begin + warp * 16 + half * 8 + lane / 4;
    position[0][half] = row < part.rows ? part.position(f, row) : -1;
  }
  for (; tile < count; ++tile) {
    const uint32_t keys = Shape<kD>::slot(shared, tile);
    float keep[2];
    ring.wait_full(tile);
    start_rows<kD>(s, q_tile, keys);
    products_wait<0>();
    hold(s);
    hide_later_keys(s, position[0], tile * kTileRows, lane);
    softmax_step(s, rows, keep, f.scale_log2);
    rescale(acc, keep);
    uint32_t hidden[1][4][4];
    pack_weights<8>(hidden[0], s);
    const uint32_t values = keys + kTile<kD>;
    bool found = false;
    for (int half = 0; half < kD / 64; ++half)
      found |= any_non_finite<8, 64>(lane_rows<64>(values + half * kHalfTile, lane));
    if (found) {
      float columns[kD / 16][2][4];  // in local memory: rare, and registers are for the loop above
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) columns[n / 2][n % 2][i] = acc[n][i];
#pragma unroll 1
      for (int n = 0; n < kD / 16; ++n) {
        float c[1][2][4];
#pragma unroll
        for (int i = 0; i < 8; ++i) c[0][i / 4][i % 4] = columns[n][i / 4][i % 4];
        multiply_visible<1, 2, 64>(c, hidden,
                                   lane_rows<64>(values + n / 4 * kHalfTile, lane) ^ (n % 4 << 5),
                                   position, tile * kTileRows, lane);
#pragma unroll
        for (int i = 0; i < 8; ++i) columns[n][i / 4][i % 4] = c[0][i / 4][i % 4];
      }
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][i] = columns[n / 2][n % 2][i];
    } else {
      start_weights<kD>(acc, hidden[0], values);
      products_wait<0>();
      hold(acc);
    }
    ring.release(tile);
  }
  for (; tile < tiles; ++tile) ring.pass(tile);

  group_sync(group);  // every warp is done with q, where the results go by
  if (begin + warp * 16 >= part.rows) return;
  const int place = place_of(warp * 16 + lane % 16);
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = __shfl_sync(kAllLanes, place, half * 8 + lane / 4);
    inverse[half] = finish_row(f, rows, half, at, at >= 0 && lane % 4 == 0);
  }
  write_rows<kD>(acc, inverse, shared_bytes + group * kTile<kD> + warp * 16 * 128, f.out, place,
                 kD);
}

#endif

template <int kD>
__global__ void __launch_bounds__(Shape<kD>::kThreads, 1) attention_groups(const Forward f) {
#ifdef MILES_HOPPER
  using S = Shape<kD>;
  extern __shared__ __align__(1024) unsigned char shared[];
  // The last blocks of a sequence see the most keys: first.
  const RowBlock at = find_block(f.query_begin, f.sequences, f.group, S::kRows,
                                 static_cast<int>(gridDim.x - 1 - blockIdx.x));
  const Part part(f, at.sequence, static_cast<int>(blockIdx.y));
  const int begin = at.block * S::kRows;
  if (begin >= part.rows || part.rows <= f.few_rows) return;
  const int seen = part.position(f, min(begin + S::kRows, part.rows) - 1) + 1;
  const typename S::Keys ring = {shared_address(shared) + S::kRingAt};
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  if (threadIdx.x < kCopyThreads) {
    leave_registers<32>();
    copy_keys<kD>(f, part, seen, shared_address(shared), ring);
  } else {
    take_registers<160>();
    const int group = uniform(static_cast<int>(threadIdx.x) / 128 - 1);
    attend<kD>(f, part, group, uniform(begin), uniform((seen + kTileRows - 1) / kTileRows), shared,
               ring);
  }
#endif
}

template <int kD>
void launch(const Forward& f, int64_t tokens, cudaStream_t stream) {
  using S = Shape<kD>;
  static_assert(S::kBytes <= kHopperShared);
  allow_shared<attention_groups<kD>>(S::kBytes);
  const dim3 grid(row_blocks(tokens * f.group, f.sequences, S::kRows),
                  static_cast<unsigned>(f.kv_heads));
  attention_groups<kD><<<grid, S::kThreads, S::kBytes, stream>>>(f);
  check_launch("attention of many rows");
}

bool find_hopper_kernels(int device) {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "asking");
  if (major != 9 || minor != 0) return false;
  // A build for other architectures may run here too: its kernel is empty, and needs no registers.
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, attention_groups<64>), "asking for a kernel");
  return attributes.numRegs > 64;
}

}  // namespace

bool has_hopper_kernels() {
  static std::atomic<uint64_t> asked = 0, has = 0;  // a bit per device
  int device = 0;
  check(cudaGetDevice(&device), "asking for the device");
  const uint64_t bit = uint64_t{1} << (device & 63);
  if ((asked.load() & bit) == 0) {
    if (find_hopper_kernels(device)) has.fetch_or(bit);
    asked.fetch_or(bit);
  }
  return (has.load() & bit) != 0 && shared_limit() >= kHopperShared;
}

void attention_hopper(const Forward& f, int64_t tokens, cudaStream_t stream) {
  if (f.dim == 64)
    launch<64>(f, tokens, stream);
  else
    launch<128>(f, tokens, stream);
}

}  // namespace miles::cuda
