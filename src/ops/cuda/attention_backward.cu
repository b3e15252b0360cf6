// Attention's backward on tensor cores, in three kernels that share nothing but what they read,
// unless there is scratch memory:
//   row_statistics   lse and rowsum(dout ∘ out) of each row, side by side in the workspace
//   backward_keys    dk and dv of 64 keys, summed over the rows that see them
//   backward_queries dq of a block of rows, summed over their keys
// The last two compute the probabilities again from lse: seven products instead of five, and in
// return no sum is shared, so nothing depends on which block comes first. Rows are (token, head of
// the group), token-major, so that a sum over rows is the sum over a group's heads too. Everything
// lies so that a product's result is the next one's operand in registers: backward_keys has keys as
// the rows of its fragments (Sᵀ = K·Qᵀ), backward_queries has queries (S = Q·Kᵀ). On Hopper scratch
// memory saves two of the seven (attention_ds.cuh).
#include <algorithm>

#include "ops/cuda/attention_ds.cuh"
#include "ops/cuda/attention_hopper.h"
#include "ops/cuda/attention_simt.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/numeric.cuh"

namespace miles::cuda {
namespace {

using namespace attention_gradient;

constexpr int kStatisticsThreads = 256;

/// kD / 8 lanes a row.
template <int kD>
__global__ void __launch_bounds__(kStatisticsThreads) row_statistics(const Backward f) {
  constexpr int kLanes = kD / 8;
  const int64_t thread = int64_t{blockIdx.x} * kStatisticsThreads + threadIdx.x;
  const auto row = static_cast<int>(min(thread / kLanes, f.rows - 1));  // all lanes sum
  const int lane = threadIdx.x % kLanes;
  const int64_t at = int64_t{row / f.group} * f.heads +
                     (f.first_head + static_cast<int>(blockIdx.y)) * f.group + row % f.group;
  float sum = 0;
  if (lane * 8 < f.dim) {
    const auto out = *reinterpret_cast<const Pack<bf16>*>(f.out + at * f.dim + lane * 8);
    const auto dout = *reinterpret_cast<const Pack<bf16>*>(f.dout + at * f.dim + lane * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(to_f32(out.at[i]), to_f32(dout.at[i]), sum);
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  if (lane == 0 && thread / kLanes < f.rows)
    f.statistics[int64_t{blockIdx.y} * f.rows + row] = make_float2(f.lse[at] * kLog2E, sum);
}

/// How backward_keys is cut. A warp has 16 keys and keeps dk and dv of kColumns · 8 of their
/// elements; of heads too large for that, kParts warps share the same keys. kSmall: for cards whose
/// blocks have little shared memory; the sums are the same, sixteen rows at a time.
template <int kD, bool kSmall>
struct KeyShape {
  static constexpr int kKeys = 64;
  static constexpr int kParts = kD > 128 ? 2 : 1;
  static constexpr int kThreads = 128 * kParts;
  static constexpr int kRows = kD <= 128 ? 64 : kSmall ? 16 : 32;
  static constexpr int kColumns = kD / 8 / kParts;
  static constexpr int kKeyBytes = kKeys * kRowBytes<kD>;
  using Tiles = RowTiles<kD, kRows, kThreads>;
  static constexpr int kBytes = 2 * kKeyBytes + Tiles::kBytes;
};

template <int kD, bool kSmall>
__global__ void __launch_bounds__(KeyShape<kD, kSmall>::kThreads, kD > 128 ? 1 : 2)
    backward_keys(const Backward f) {
  using Shape = KeyShape<kD, kSmall>;
  constexpr int kRows = Shape::kRows, kColumns = Shape::kColumns;
  extern __shared__ __align__(1024) unsigned char shared[];
  // The first keys of a sequence have the most rows: first.
  const RowBlock at =
      find_block(f.query_begin, f.sequences, 1, Shape::kKeys, static_cast<int>(blockIdx.x));
  const Part part(f, at.sequence);
  const int key_begin = at.block * Shape::kKeys;
  if (key_begin >= part.tokens) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, columns = threadIdx.x / 128;
  const uint32_t k = shared_address(shared);
  const bf16* const pool[] = {f.k, f.v};
  load_rows<Shape::kKeys, kD, Shape::kThreads>(k, pool, f.dim, [&](int key) {
    return key_begin + key < part.tokens ? part.key_at(f, key_begin + key) : int64_t{-1};
  });
  const int first_row = key_begin * f.group;
  typename Shape::Tiles tiles(f, part, first_row, shared + 2 * Shape::kKeyBytes);
  tiles.start();

  const int warp_begin = key_begin + warp * 16;  // this warp's first key
  const uint32_t k_lane = lane_rows<kD>(k + warp * 16 * kRowBytes<kD>, lane);
  float dk[1][kColumns][4] = {}, dv[1][kColumns][4] = {};
  for (int tile = 0; tile < tiles.count(); ++tile) {
    const uint32_t q = tiles.wait(tile), dout = q + Shape::Tiles::kTileBytes;
    const int begin = first_row + tile * kRows, end = begin + kRows;
    if ((min(end, part.rows) - 1) / f.group >= warp_begin) {
      float s[1][kRows / 8][4] = {}, dp[1][kRows / 8][4] = {};
      multiply_rows<1, kRows / 8, kD>(s, k_lane, lane_columns<kD>(q, lane));
      multiply_rows<1, kRows / 8, kD>(dp, k_lane + Shape::kKeyBytes, lane_columns<kD>(dout, lane));
      const bool whole = begin / f.group >= warp_begin + 15 && end <= part.rows;
      const auto* const statistics =
          reinterpret_cast<const float4*>(tiles.statistics(tile)) + lane % 4;
#pragma unroll
      for (int n = 0; n < kRows / 8; ++n) {
        const float4 pair = statistics[n * 4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          differentiate(s[0][n][i], dp[0][n][i], f.scale_log2, i % 2 ? pair.z : pair.x,
                        i % 2 ? pair.w : pair.y);
      }
      if (!whole) {
        const auto* const tokens = reinterpret_cast<const int2*>(tiles.tokens(tile)) + lane % 4;
#pragma unroll
        for (int n = 0; n < kRows / 8; ++n) {
          const int2 pair = tokens[n * 4];
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if ((i % 2 ? pair.y : pair.x) < warp_begin + lane / 4 + i / 2 * 8)
              s[0][n][i] = dp[0][n][i] = 0;
        }
      }
      uint32_t p[1][kRows / 16][4], ds[1][kRows / 16][4];
      pack_weights<kRows / 8>(p[0], s[0]);
      pack_weights<kRows / 8>(ds[0], dp[0]);
      const uint32_t at_columns = columns * kColumns << 4;
      multiply_weights<1, kColumns, kRows / 16, kD>(dv, p, lane_rows<kD>(dout, lane) ^ at_columns);
      multiply_weights<1, kColumns, kRows / 16, kD>(dk, ds, lane_rows<kD>(q, lane) ^ at_columns);
    }
    tiles.look_ahead(tile);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = warp_begin + half * 8 + lane / 4;
    if (key >= part.tokens) continue;
    const int64_t to = part.key_at(f, key);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int column = (columns * kColumns + n) * 8 + lane % 4 * 2;
      if (column >= f.dim) continue;
      *reinterpret_cast<uint32_t*>(f.dk + to + column) =
          pack_bf16(dk[0][n][half * 2] * f.scale, dk[0][n][half * 2 + 1] * f.scale);
      *reinterpret_cast<uint32_t*>(f.dv + to + column) =
          pack_bf16(dv[0][n][half * 2], dv[0][n][half * 2 + 1]);
    }
  }
}

/// How backward_queries is cut: a warp has kM · 16 rows.
template <int kD, bool kSmall>
struct QueryShape {
  static constexpr int kM = kD > 128 ? 1 : 2;
  static constexpr int kThreads = 128;
  static constexpr int kRows = 4 * kM * 16;
  static constexpr int kKeys = kD > 128 && kSmall ? 16 : 32;
  static constexpr int kRowsBytes = kRows * kRowBytes<kD>;
  static constexpr int kKeyBytes = kKeys * kRowBytes<kD>;
  static constexpr int kBytes = 2 * kRowsBytes + 4 * kKeyBytes + kRows * 12;
};

template <int kD, bool kSmall>
__global__ void __launch_bounds__(QueryShape<kD, kSmall>::kThreads, kD > 128 ? 1 : 2)
    backward_queries(const Backward f) {
  using Shape = QueryShape<kD, kSmall>;
  constexpr int kM = Shape::kM, kKeys = Shape::kKeys;
  extern __shared__ __align__(1024) unsigned char shared[];
  // The last rows of a sequence see the most keys: first.
  const RowBlock at = find_block(f.query_begin, f.sequences, f.group, Shape::kRows,
                                 static_cast<int>(gridDim.x - 1 - blockIdx.x));
  const Part part(f, at.sequence);
  const int block_begin = at.block * Shape::kRows;
  if (block_begin >= part.rows) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t q = shared_address(shared), tiles = q + 2 * Shape::kRowsBytes;
  const bf16* const queries[] = {f.q, f.dout};
  load_rows<Shape::kRows, kD, Shape::kThreads>(q, queries, f.dim, [&](int row) {
    return block_begin + row < part.rows ? part.row_at(f, block_begin + row) * f.dim : int64_t{-1};
  });
  const int seen = (min(block_begin + Shape::kRows, part.rows) - 1) / f.group + 1;
  const auto copy = [&](int tile) {
    if (tile * kKeys < seen) {
      const bf16* const pool[] = {f.k, f.v};
      load_rows<kKeys, kD, Shape::kThreads>(tiles + tile % 2 * 2 * Shape::kKeyBytes, pool, f.dim,
                                            [&](int row) {
                                              const int key = tile * kKeys + row;
                                              return key < seen ? part.key_at(f, key) : int64_t{-1};
                                            });
    }
    copy_async_commit();
  };
  copy(0);

  const int begin = block_begin + warp * kM * 16;  // this warp's first row
  const int first = begin / f.group;
  const int last = begin < part.rows ? (min(begin + kM * 16, part.rows) - 1) / f.group : -1;
  // Of this warp's rows g; in shared memory, for registers are scarce. The first tile's barrier
  // shows them.
  auto* const statistics = reinterpret_cast<float2*>(shared + Shape::kBytes - Shape::kRows * 12);
  auto* const tokens = reinterpret_cast<int32_t*>(statistics + Shape::kRows);
  for (int i = threadIdx.x; i < Shape::kRows; i += Shape::kThreads) {
    const int row = block_begin + i;
    statistics[i] = row < part.rows ? part.statistics[row] : make_float2(0, 0);
    tokens[i] = row < part.rows ? row / f.group : -1;
  }
  const int own = warp * kM * 16 + lane / 4;
  float dq[kM][kD / 8][4] = {};
  const uint32_t q_lane = lane_rows<kD>(q + warp * kM * 16 * kRowBytes<kD>, lane);
  for (int tile = 0; tile * kKeys < seen; ++tile) {
    copy_async_wait<0>();
    __syncthreads();
    copy(tile + 1);
    if (tile * kKeys > last) continue;
    const uint32_t k = tiles + tile % 2 * 2 * Shape::kKeyBytes;
    float s[kM][kKeys / 8][4] = {}, dp[kM][kKeys / 8][4] = {};
    multiply_rows<kM, kKeys / 8, kD>(s, q_lane, lane_columns<kD>(k, lane));
    multiply_rows<kM, kKeys / 8, kD>(dp, q_lane + Shape::kRowsBytes,
                                     lane_columns<kD>(k + Shape::kKeyBytes, lane));
    const bool whole = tile * kKeys + kKeys - 1 <= first;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 row = statistics[own + m * 16 + half * 8];
        const int visible = whole ? kKeys : tokens[own + m * 16 + half * 8] - tile * kKeys + 1;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int i = half * 2; i < half * 2 + 2; ++i) {
            differentiate(s[m][n][i], dp[m][n][i], f.scale_log2, row.x, row.y);
            if (n * 8 + lane % 4 * 2 + i % 2 >= visible) dp[m][n][i] = 0;
          }
      }
    uint32_t ds[kM][kKeys / 16][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) pack_weights<kKeys / 8>(ds[m], dp[m]);
    multiply_weights<kM, kD / 8, kKeys / 16, kD>(dq, ds, lane_rows<kD>(k, lane));
  }
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = begin + m * 16 + half * 8 + lane / 4;
      if (row >= part.rows) continue;
      bf16* const to = f.dq + part.row_at(f, row) * f.dim;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
        if (n * 8 < f.dim)
          *reinterpret_cast<uint32_t*>(to + n * 8 + lane % 4 * 2) =
              pack_bf16(dq[m][n][half * 2] * f.scale, dq[m][n][half * 2 + 1] * f.scale);
    }
}

template <int kD, bool kSmall>
void launch(const Backward& f, int heads, cudaStream_t stream) {
  const auto y = static_cast<unsigned>(heads);
  row_statistics<kD><<<dim3(blocks_for(f.rows * (kD / 8), kStatisticsThreads), y),
                       kStatisticsThreads, 0, stream>>>(f);
  check_launch("attention_backward's row statistics");
  if (f.dim == kD && kD <= 128 && has_hopper_kernels())
    return attention_backward_hopper(f, heads, stream);
  using Keys = KeyShape<kD, kSmall>;
  allow_shared<backward_keys<kD, kSmall>>(Keys::kBytes);
  backward_keys<kD, kSmall><<<dim3(row_blocks(f.rows / f.group, f.sequences, Keys::kKeys), y),
                              Keys::kThreads, Keys::kBytes, stream>>>(f);
  check_launch("attention_backward of keys");
  using Queries = QueryShape<kD, kSmall>;
  allow_shared<backward_queries<kD, kSmall>>(Queries::kBytes);
  backward_queries<kD, kSmall><<<dim3(row_blocks(f.rows, f.sequences, Queries::kRows), y),
                                 Queries::kThreads, Queries::kBytes, stream>>>(f);
  check_launch("attention_backward of queries");
}

template <int kD>
constexpr int kSharedBytes = std::max(KeyShape<kD, false>::kBytes, QueryShape<kD, false>::kBytes);
static_assert(kSharedBytes<128> <= kLeastShared);
static_assert(KeyShape<256, true>::kBytes <= kLeastShared);
static_assert(QueryShape<256, true>::kBytes <= kLeastShared);

}  // namespace

void attention_backward(Exec& exec, const AttentionBackwardArgs& args) {
  const int64_t tokens = args.q.dim(0), dim = args.q.dim(2);
  const int64_t sequences = args.query_begin.elements() - 1;
  if (tokens == 0 || sequences == 0) return;
  if (args.q.dtype() != DType::bf16 || dim % 16 != 0 || dim > 256)
    return attention_backward_simt(exec, args);
  const auto heads = static_cast<int>(args.q.dim(1)), kv_heads = static_cast<int>(args.k.dim(1));
  Backward f = {
      .q = pointer<const bf16>(args.q),
      .k = pointer<const bf16>(args.k),
      .v = pointer<const bf16>(args.v),
      .out = pointer<const bf16>(args.out),
      .dout = pointer<const bf16>(args.dout),
      .lse = pointer<const float>(args.lse),
      .query_begin = pointer<const int32_t>(args.query_begin),
      .dq = pointer<bf16>(args.dq),
      .dk = pointer<bf16>(args.dk),
      .dv = pointer<bf16>(args.dv),
      .statistics = reinterpret_cast<float2*>(exec.workspace.data()),
      .ds = nullptr,
      .ds_tiles = 0,
      .rows = tokens * (heads / kv_heads),
      .sequences = static_cast<int>(sequences),
      .heads = heads,
      .kv_heads = kv_heads,
      .group = heads / kv_heads,
      .dim = static_cast<int>(dim),
      .first_head = 0,
      .scale = args.scale,
      .scale_log2 = args.scale * kLog2E,
  };
  // As many key heads at a time as the workspace has room for.
  const auto room =
      static_cast<int64_t>(exec.workspace.size()) / (f.rows * static_cast<int64_t>(sizeof(float2)));
  if (room == 0)
    fail(ErrorCode::device,
         "attention_backward: {} tokens of {} heads a group need {} bytes of "
         "workspace, and there are {}: lower --max-tokens-per-gpu",
         tokens, f.group, f.rows * static_cast<int64_t>(sizeof(float2)), exec.workspace.size());
  int at_once = static_cast<int>(std::min<int64_t>(room, kv_heads));
  at_once = plan_ds(f, args, at_once);
  for (; f.first_head < kv_heads; f.first_head += at_once) {
    const int count = std::min(kv_heads - f.first_head, at_once);
    if (dim <= 64)
      launch<64, false>(f, count, stream_of(exec));
    else if (dim <= 128)
      launch<128, false>(f, count, stream_of(exec));
    else if (kSharedBytes<256> <= shared_limit())
      launch<256, false>(f, count, stream_of(exec));
    else
      launch<256, true>(f, count, stream_of(exec));
  }
}

}  // namespace miles::cuda
