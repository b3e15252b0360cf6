// Attention's forward on tensor cores, two kernels of one recurrence:
//   attention_tiles  here: prefill and training; a warp owns 16 or 32 rows and does all for them.
//                    Hopper has attention_hopper.cu instead, of the same bits, for the usual head
//                    sizes
//   attention_rows   attention_rows.cu: decode
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
#include "ops/cuda/attention_rows.h"
#include "ops/cuda/attention_simt.h"
#include "ops/cuda/backend.h"

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

/// How many tokens a sequence must bring on average before one of few is not worth a kernel.
constexpr int64_t kLongSequences = 64;

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
void launch_tiles(Exec& exec, const Forward& f, int64_t tokens) {
  constexpr int kStages = 2, kFewStages = kD > 128 ? 1 : 2;
  static_assert(kTilesBytes<kD, kFewStages> <= kLeastShared);
  if (kTilesBytes<kD, kStages> <= shared_limit())
    launch_tiles<kD, kStages>(exec, f, tokens);
  else
    launch_tiles<kD, kFewStages>(exec, f, tokens);
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
  Forward f = {
      .q = pointer<const bf16>(args.q),
      .k = pointer<const bf16>(args.k_pool),
      .v = pointer<const bf16>(args.v_pool),
      .query_begin = pointer<const int32_t>(args.query_begin),
      .context = pointer<const int32_t>(args.context),
      .pages = pointer<const int32_t>(args.page_table),
      .kv_begin = pointer<const int32_t>(args.kv_begin),
      .shared_runs = pointer<const int32_t>(args.shared_runs),
      .shared_keys = pointer<const int32_t>(args.shared_keys),
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
      .runs = args.shared_runs ? static_cast<int>(args.shared_runs.dim(0)) : 0,
      .few_rows = 0,
      .prefixes = nullptr,
  };
  const bool decode = tokens <= sequences;  // one token each, but for an odd guest
  const bool mixed = !decode && tokens < kLongSequences * sequences;
  f.few_rows = decode ? INT_MAX : mixed ? 16 : 0;
  if (f.few_rows > 0) attention_rows(exec, f);
  if (decode) return;
  if ((dim == 64 || dim == 128) && has_hopper_kernels())
    return attention_hopper(f, tokens, stream_of(exec));
  if (dim <= 64) return launch_tiles<64>(exec, f, tokens);
  if (dim <= 128) return launch_tiles<128>(exec, f, tokens);
  launch_tiles<256>(exec, f, tokens);
}

}  // namespace miles::cuda
