// Attention's forward on tensor cores, two kernels of one recurrence:
//   attention_tiles  prefill and training: a warp owns 16 or 32 rows and does all for them; Hopper
//                    has attention_hopper.cu instead, of the same bits, for the usual head sizes
//   attention_rows   decode: 16 rows a block; four warps share the keys of S = Q·Kᵀ and the columns
//                    of P·V, so that the loads of keys and values, which is what decode waits for,
//                    are deep
// Why a row's bits agree. Both visit tiles of 64 keys at absolute positions, ascending. A score is
// one chain of m16n8k16 products over the head's elements, ascending, and depends on no other row
// or key of the tile. attention_rows passes whole C fragments of S through shared memory, so every
// warp then holds the fragments that a warp of attention_tiles computes, and the softmax is the
// same code on the same registers. An output column is one chain of products over the keys,
// ascending, whichever warp owns it. A tile that a row sees nothing of changes nothing in its state
// but the sign of a zero, and the last step adds +0, which makes −0 positive.
#include <climits>

#include "ops/cuda/attention_hopper.h"
#include "ops/cuda/attention_keys.cuh"
#include "ops/cuda/attention_simt.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/chained_launch.cuh"

namespace miles::cuda {
namespace {

using namespace attention_forward;

template <int kD>
constexpr int kTilesM = kD > 128 ? 1 : 2;
template <int kD, int kStages>
constexpr int kTilesBytes =
    kWarps* kTilesM<kD> * 16 * kRowBytes<kD> + KeyTiles<kD, kStages>::kBytes;

template <int kD, int kStages>
__global__ void __launch_bounds__(kThreads, kD > 128 ? 1 : 2) attention_tiles(const Forward f) {
  constexpr int kM = kTilesM<kD>, kBlock = kWarps * kM * 16;
  extern __shared__ __align__(1024) unsigned char shared[];
  // The last blocks of a sequence see the most keys: first.
  const RowBlock at = find_block(f.query_begin, f.sequences, f.group, kBlock,
                                 static_cast<int>(gridDim.x - 1 - blockIdx.x));
  const Part part(f, at.sequence, static_cast<int>(blockIdx.y));
  const int block_begin = at.block * kBlock;
  if (block_begin >= part.rows || part.rows <= f.few_rows) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t q = shared_address(shared);
  const bf16* const queries[] = {f.q};
  load_rows<kBlock, kD, kThreads>(q, queries, f.dim, [&](int row) {
    return block_begin + row < part.rows ? part.at(f, block_begin + row) * f.dim : int64_t{-1};
  });
  const int seen = part.position(f, min(block_begin + kBlock, part.rows) - 1) + 1;
  KeyTiles<kD, kStages> tiles(f, part, seen, shared + kBlock * kRowBytes<kD>);
  tiles.start();

  const int begin = block_begin + warp * kM * 16;  // this warp's first row
  const int last = begin < part.rows ? part.position(f, min(begin + kM * 16, part.rows) - 1) : -1;
  RowState rows[kM];
  float acc[kM][kD / 8][4] = {};
  const uint32_t q_lane = lane_rows<kD>(q + warp * kM * 16 * kRowBytes<kD>, lane);
  const auto weigh = [&](float(&s)[kM][kKeys / 8][4], uint32_t(&w)[kM][kKeys / 16][4]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float keep[2];
      softmax_step(s[m], rows[m], keep, f.scale_log2);
      pack_weights<kKeys / 8>(w[m], s[m]);
      rescale(acc[m], keep);
    }
  };
  const int whole =
      (part.position(f, block_begin) + 1) / kKeys;  // tiles that every row sees all of
  int tile = 0;
  for (; tile < whole; ++tile) {
    const uint32_t keys = tiles.wait(tile);
    float s[kM][kKeys / 8][4] = {};
    multiply_rows<kM, kKeys / 8, kD>(s, q_lane, lane_columns<kD>(keys, lane));
    uint32_t w[kM][kKeys / 16][4];
    weigh(s, w);
    multiply_weights<kM, kD / 8, kKeys / 16, kD>(acc, w,
                                                 lane_rows<kD>(keys + tiles.kTileBytes, lane));
    tiles.look_ahead(tile);
  }
  int position[kM][2];  // not before it is needed: the loop above has no register to spare
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = begin + m * 16 + half * 8 + lane / 4;
      position[m][half] = row < part.rows ? part.position(f, row) : -1;
    }
  for (; tile < tiles.count(); ++tile) {
    const uint32_t keys = tiles.wait(tile);
    if (tile * kKeys <= last) {
      float s[kM][kKeys / 8][4] = {};
      multiply_rows<kM, kKeys / 8, kD>(s, q_lane, lane_columns<kD>(keys, lane));
#pragma unroll
      for (int m = 0; m < kM; ++m) hide_later_keys(s[m], position[m], tile * kKeys, lane);
      uint32_t w[kM][kKeys / 16][4];
      weigh(s, w);
      const uint32_t values = lane_rows<kD>(keys + tiles.kTileBytes, lane);
      if (any_non_finite<kD / 8, kD>(values))
        multiply_visible<kM, kD / 8, kD>(acc, w, values, position, tile * kKeys, lane);
      else
        multiply_weights<kM, kD / 8, kKeys / 16, kD>(acc, w, values);
    }
    tiles.look_ahead(tile);
  }

  // Through this warp's own rows of q, which it is done with, so that rows are written whole.
  if (begin >= part.rows) return;
  unsigned char* const staging = shared + warp * kM * 16 * kRowBytes<kD>;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = m * 16 + half * 8 + lane / 4;
      const bool exists = begin + r < part.rows;
      const int64_t index = exists ? part.at(f, begin + r) : 0;
      const float inverse = finish_row(f, rows[m], half, index, exists && lane % 4 == 0);
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
        *reinterpret_cast<uint32_t*>(staging + r * kRowBytes<kD> + ((n ^ (r & 7)) << 4) +
                                     lane % 4 * 4) =
            pack_bf16(acc[m][n][half * 2] * inverse + 0.0F,
                      acc[m][n][half * 2 + 1] * inverse + 0.0F);
    }
  __syncwarp();
  constexpr int kChunks = kD / 8, kStep = 32 / kChunks;  // lanes of a row, rows at a time
  const int chunk = lane % kChunks;
#pragma unroll
  for (int r = lane / kChunks; r < kM * 16; r += kStep)
    if (begin + r < part.rows && chunk * 8 < f.dim)
      *reinterpret_cast<uint4*>(f.out + part.at(f, begin + r) * f.dim + chunk * 8) =
          *reinterpret_cast<const uint4*>(staging + r * kRowBytes<kD> + ((chunk ^ (r & 7)) << 4));
}

constexpr int kScoreBytes = kKeys / 8 * 32 * 16;  // C fragments of 16 rows
template <int kD, int kStages>
constexpr int kRowsBytes = 16 * kRowBytes<kD> + kScoreBytes + KeyTiles<kD, kStages>::kBytes;

template <int kD, int kStages>
__global__ void __launch_bounds__(kThreads) attention_rows(const Forward f) {
  wait_for_earlier_kernels();
  constexpr int kColumns = kD / 8 / kWarps;  // of eight: a warp's
  extern __shared__ __align__(1024) unsigned char shared[];
  const Part part(f, static_cast<int>(blockIdx.x) / f.kv_heads,
                  static_cast<int>(blockIdx.x) % f.kv_heads);
  if (part.rows > f.few_rows) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t q = shared_address(shared);
  const uint32_t q_lane = lane_rows<kD>(q, lane);
  auto* const scores = reinterpret_cast<float4*>(shared + 16 * kRowBytes<kD>) + lane;
  for (int begin = 0; begin < part.rows; begin += 16) {
    const bf16* const queries[] = {f.q};
    load_rows<16, kD, kThreads>(q, queries, f.dim, [&](int row) {
      return begin + row < part.rows ? part.at(f, begin + row) * f.dim : int64_t{-1};
    });
    const int seen = part.position(f, min(begin + 16, part.rows) - 1) + 1;
    KeyTiles<kD, kStages> tiles(f, part, seen, shared + 16 * kRowBytes<kD> + kScoreBytes);
    tiles.start();

    RowState rows;
    int position[1][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = begin + half * 8 + lane / 4;
      position[0][half] = row < part.rows ? part.position(f, row) : -1;
    }
    const int first = part.position(f, begin);
    float acc[1][kColumns][4] = {};
    for (int tile = 0; tile < tiles.count(); ++tile) {
      const uint32_t keys = tiles.wait(tile);
      float part_of_s[1][2][4] = {};  // this warp's 16 keys
      multiply_rows<1, 2, kD>(part_of_s, q_lane,
                              lane_columns<kD>(keys, lane) + warp * 16 * kRowBytes<kD>);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float(&c)[4] = part_of_s[0][n];
        scores[(warp * 2 + n) * 32] = make_float4(c[0], c[1], c[2], c[3]);
      }
      __syncthreads();  // the next write is after the next tile's barrier
      float s[1][kKeys / 8][4];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const float4 c = scores[n * 32];
        s[0][n][0] = c.x;
        s[0][n][1] = c.y;
        s[0][n][2] = c.z;
        s[0][n][3] = c.w;
      }
      const int tile_begin = tile * kKeys;
      const bool whole = tile_begin + kKeys - 1 <= first;
      if (!whole) hide_later_keys(s[0], position[0], tile_begin, lane);
      float keep[2];
      softmax_step(s[0], rows, keep, f.scale_log2);
      rescale(acc[0], keep);
      uint32_t w[1][kKeys / 16][4];
      pack_weights<kKeys / 8>(w[0], s[0]);
      const uint32_t values = lane_rows<kD>(keys + tiles.kTileBytes, lane) ^ (warp * kColumns << 4);
      if (!whole && any_non_finite<kColumns, kD>(values))
        multiply_visible<1, kColumns, kD>(acc, w, values, position, tile_begin, lane);
      else
        multiply_weights<1, kColumns, kKeys / 16, kD>(acc, w, values);
      tiles.look_ahead(tile);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = begin + half * 8 + lane / 4;
      const bool exists = row < part.rows;
      const int64_t index = exists ? part.at(f, row) : 0;
      const float inverse = finish_row(f, rows, half, index, exists && warp == 0 && lane % 4 == 0);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const int column = (warp * kColumns + n) * 8 + lane % 4 * 2;
        if (exists && column < f.dim)
          *reinterpret_cast<uint32_t*>(f.out + index * f.dim + column) = pack_bf16(
              acc[0][n][half * 2] * inverse + 0.0F, acc[0][n][half * 2 + 1] * inverse + 0.0F);
      }
    }
    copy_async_wait<0>();
    __syncthreads();  // the next rows' copies overwrite what this block may still read
  }
}

/// How many tokens a sequence must bring on average before one of few is not worth a kernel.
constexpr int64_t kLongSequences = 64;

template <int kD, int kStages>
void launch_rows(Exec& exec, const Forward& f) {
  constexpr int kBytes = kRowsBytes<kD, kStages>;
  allow_shared<attention_rows<kD, kStages>>(kBytes);
  const LaunchShape shape = {static_cast<unsigned>(f.sequences * f.kv_heads), kThreads, kBytes};
  launch_chained<attention_rows<kD, kStages>>(exec, shape, "attention of few rows", f);
}

template <int kD, int kStages>
void launch_tiles(Exec& exec, const Forward& f, int64_t tokens) {
  constexpr int kBytes = kTilesBytes<kD, kStages>;
  allow_shared<attention_tiles<kD, kStages>>(kBytes);
  const dim3 grid(row_blocks(tokens * f.group, f.sequences, kWarps * kTilesM<kD> * 16),
                  static_cast<unsigned>(f.kv_heads));
  attention_tiles<kD, kStages><<<grid, kThreads, kBytes, stream_of(exec)>>>(f);
  check_launch("attention of many rows");
}

/// Stages: what pays where there is room, and what every card has room for.
template <int kD>
void launch(Exec& exec, Forward f, int64_t tokens) {
  constexpr int kTiles = 2, kFewTiles = kD > 128 ? 1 : 2;
  constexpr int kRows = kD > 128 ? 2 : kD > 64 ? 3 : 4, kFewRows = kD > 128 ? 1 : kD > 64 ? 2 : 4;
  static_assert(kTilesBytes<kD, kFewTiles> <= kLeastShared);
  static_assert(kRowsBytes<kD, kFewRows> <= kLeastShared);
  const bool decode = tokens <= f.sequences;  // one token each, but for an odd guest
  const bool mixed = !decode && tokens < kLongSequences * f.sequences;
  f.few_rows = decode ? INT_MAX : mixed ? 16 : 0;
  if (decode || mixed) {
    if (kRowsBytes<kD, kRows> <= shared_limit())
      launch_rows<kD, kRows>(exec, f);
    else
      launch_rows<kD, kFewRows>(exec, f);
  }
  if (decode) return;
  if (f.dim == kD && kD <= 128 && has_hopper_kernels())
    return attention_hopper(f, tokens, stream_of(exec));
  if (kTilesBytes<kD, kTiles> <= shared_limit())
    launch_tiles<kD, kTiles>(exec, f, tokens);
  else
    launch_tiles<kD, kFewTiles>(exec, f, tokens);
}

}  // namespace

void attention(Exec& exec, const AttentionArgs& args) {
  const int64_t tokens = args.q.dim(0), dim = args.q.dim(2), sequences = args.context.elements();
  if (tokens == 0 || sequences == 0) return;
  MILES_CHECK(args.scale > 0, "attention: scale {}", args.scale);  // max(s)·scale = max(s·scale)
  if (args.q.dtype() != DType::bf16 || dim % 16 != 0 || dim > 256)
    return attention_simt(exec, args);
  const auto heads = static_cast<int>(args.q.dim(1));
  const auto kv_heads = static_cast<int>(args.k_pool.dim(1));
  const Forward f = {
      .q = pointer<const bf16>(args.q),
      .k = pointer<const bf16>(args.k_pool),
      .v = pointer<const bf16>(args.v_pool),
      .query_begin = pointer<const int32_t>(args.query_begin),
      .context = pointer<const int32_t>(args.context),
      .pages = pointer<const int32_t>(args.page_table),
      .kv_begin = pointer<const int32_t>(args.kv_begin),
      .out = pointer<bf16>(args.out),
      .lse = pointer<float>(args.lse),
      .sequences = static_cast<int>(sequences),
      .heads = heads,
      .kv_heads = kv_heads,
      .group = heads / kv_heads,
      .dim = static_cast<int>(dim),
      .page_size = args.page_size,
      .pages_per_sequence = args.page_table ? static_cast<int>(args.page_table.dim(1)) : 0,
      .scale_log2 = args.scale * kLog2E,
      .few_rows = 0,
  };
  if (dim <= 64) return launch<64>(exec, f, tokens);
  if (dim <= 128) return launch<128>(exec, f, tokens);
  launch<256>(exec, f, tokens);
}

}  // namespace miles::cuda
