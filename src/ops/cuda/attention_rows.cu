// Attention for decode. Four warps of a block share the keys of S = Q·Kᵀ and the columns of P·V, so
// that the loads of keys and values, which is what decode waits for, are deep. Two kernels:
//   attention_rows_shared  a block takes the rows of a run's sequences through the tiles that they
//                          share, and leaves their states in the workspace
//   attention_rows_alone   a block takes the rows of one sequence through its tiles, from the first
//                          on or from those states on
// A row's bits are the same either way: it sees the same tiles in the same order by the same code,
// a state is kept in f32 as it lies in registers, each lane's part of a sum by itself, and none of
// this depends on which row of the block it is. See attention.cu for why they are prefill's.
#include <algorithm>
#include <cstdlib>

#include "ops/cuda/attention_keys.cuh"
#include "ops/cuda/attention_rows.h"
#include "ops/cuda/chained_launch.cuh"

namespace miles::cuda {
namespace {

using namespace attention_forward;

constexpr int kScoreBytes = kKeys / 8 * 32 * 16;  // C fragments of 16 rows

/// A row's state in Forward::prefixes: kD sums of weighted values, the largest score, three numbers
/// that are nothing, and the sum of weights in four parts, one a lane.
template <int kD>
constexpr int kPrefixFloats = kD + 8;

/// kM·16 rows of a block. Every warp has the softmax of all of them, and kColumns·8 columns of the
/// weighted values.
template <int kD, int kM>
class BlockRows {
 public:
  static constexpr int kRows = kM * 16;
  static constexpr int kColumns = kD / 8 / kWarps;
  static constexpr int kBytes = kRows * kRowBytes<kD> + kM * kScoreBytes;

  /// Rows begin … of a part.
  __device__ BlockRows(const Forward& f, const Part& part, int begin, unsigned char* shared)
      : f_(f),
        part_(part),
        begin_(begin),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        q_(shared_address(shared)),
        scores_(reinterpret_cast<float4*>(shared + kRows * kRowBytes<kD>) + lane_) {}

  /// Starts to copy the queries; they are there when the copies that are started next are.
  __device__ void start() const {
    const bf16* const queries[] = {f_.q};
    load_rows<kRows, kD, kThreads>(q_, queries, f_.dim, [&](int row) {
      return begin_ + row < part_.rows ? part_.at(f_, begin_ + row) * f_.dim : int64_t{-1};
    });
  }

  /// Positions of this lane's rows, −1 for no row.
  __device__ void positions(int (&position)[kM][2]) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(m, half);
        position[m][half] = row < part_.rows ? part_.position(f_, row) : -1;
      }
  }

  /// Takes the rows through the tile at `keys`, of keys tile_begin …; `whole`: every row sees all
  /// of it. Between two tiles there is a barrier.
  __device__ void visit(uint32_t keys, int tile_begin, bool whole, const int (&position)[kM][2]) {
    float part_of_s[kM][2][4] = {};  // this warp's 16 keys
    multiply_rows<kM, 2, kD>(part_of_s, lane_rows<kD>(q_, lane_),
                             lane_columns<kD>(keys, lane_) + warp_ * 16 * kRowBytes<kD>);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float(&c)[4] = part_of_s[m][n];
        scores_[(m * kKeys / 8 + warp_ * 2 + n) * 32] = make_float4(c[0], c[1], c[2], c[3]);
      }
    __syncthreads();  // the next write is after the next tile's barrier
    uint32_t w[kM][kKeys / 16][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float s[kKeys / 8][4];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const float4 c = scores_[(m * kKeys / 8 + n) * 32];
        s[n][0] = c.x;
        s[n][1] = c.y;
        s[n][2] = c.z;
        s[n][3] = c.w;
      }
      if (!whole) hide_later_keys(s, position[m], tile_begin, lane_);
      float keep[2];
      softmax_step(s, rows_[m], keep, f_.scale_log2);
      rescale(acc_[m], keep);
      pack_weights<kKeys / 8>(w[m], s);
    }
    const uint32_t values =
        lane_rows<kD>(keys + kKeys * kRowBytes<kD>, lane_) ^ (warp_ * kColumns << 4);
    if (!whole && any_non_finite<kColumns, kD>(values))
      multiply_visible<kM, kColumns, kD>(acc_, w, values, position, tile_begin, lane_);
    else
      multiply_weights<kM, kColumns, kKeys / 16, kD>(acc_, w, values);
  }

  /// Into Forward::prefixes, and from there.
  __device__ void keep() const {
    with_prefixes(*this, [&](float* state, int m, int half) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
        *reinterpret_cast<float2*>(state + column_of(n)) =
            make_float2(acc_[m][n][half * 2], acc_[m][n][half * 2 + 1]);
      if (warp_ != 0) return;
      if (lane_ % 4 == 0) state[kD] = rows_[m].top[half];
      state[kD + 4 + lane_ % 4] = rows_[m].sum[half];
    });
  }
  __device__ void resume() {
    with_prefixes(*this, [&](const float* state, int m, int half) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const float2 c = *reinterpret_cast<const float2*>(state + column_of(n));
        acc_[m][n][half * 2] = c.x;
        acc_[m][n][half * 2 + 1] = c.y;
      }
      rows_[m].top[half] = state[kD];
      rows_[m].sum[half] = state[kD + 4 + lane_ % 4];
    });
  }

  /// Results to where they belong.
  __device__ void finish() const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(m, half);
        const bool exists = row < part_.rows;
        const int64_t index = exists ? part_.at(f_, row) : 0;
        const float inverse =
            finish_row(f_, rows_[m], half, index, exists && warp_ == 0 && lane_ % 4 == 0);
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          const int column = column_of(n);
          if (exists && column < f_.dim)
            *reinterpret_cast<uint32_t*>(f_.out + index * f_.dim + column) = pack_bf16(
                acc_[m][n][half * 2] * inverse + 0.0F, acc_[m][n][half * 2 + 1] * inverse + 0.0F);
        }
      }
  }

 private:
  __device__ int row_of(int m, int half) const {
    return begin_ + m * 16 + half * 8 + lane_ / 4;
  }
  __device__ int column_of(int n) const {
    return (warp_ * kColumns + n) * 8 + lane_ % 4 * 2;
  }
  template <class Self, class Body>
  __device__ static void with_prefixes(Self& self, Body&& body) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = self.row_of(m, half);
        if (row < self.part_.rows)
          body(self.f_.prefixes + self.part_.prefix_at(self.f_, row) * kPrefixFloats<kD>, m, half);
      }
  }

  const Forward& f_;
  const Part& part_;
  int begin_, lane_, warp_;
  uint32_t q_;
  float4* scores_;
  RowState rows_[kM];
  float acc_[kM][kColumns][4] = {};
};

template <int kD, int kStages, int kM>
constexpr int kRowsBytes = BlockRows<kD, kM>::kBytes + KeyTiles<kD, kStages>::kBytes;

template <int kD, int kStages>
__global__ void __launch_bounds__(kThreads) attention_rows_alone(const Forward f) {
  wait_for_earlier_kernels();
  extern __shared__ __align__(1024) unsigned char shared[];
  const Part part(f, static_cast<int>(blockIdx.x) / f.kv_heads,
                  static_cast<int>(blockIdx.x) % f.kv_heads);
  if (part.rows > f.few_rows) return;
  const int first = f.prefixes != nullptr ? f.shared_keys[part.sequence] / kKeys : 0;
  for (int begin = 0; begin < part.rows; begin += 16) {
    BlockRows<kD, 1> rows(f, part, begin, shared);
    rows.start();
    const int seen = part.position(f, min(begin + 16, part.rows) - 1) + 1;
    KeyTiles<kD, kStages> tiles(f, part, seen, shared + BlockRows<kD, 1>::kBytes);
    tiles.start(first);
    if (first > 0) rows.resume();
    int position[1][2];
    rows.positions(position);
    const int least = part.position(f, begin);
    for (int tile = first; tile < tiles.count(); ++tile) {
      const uint32_t keys = tiles.wait(tile);
      const int tile_begin = tile * kKeys;
      rows.visit(keys, tile_begin, tile_begin + kKeys - 1 <= least, position);
      tiles.look_ahead(tile);
    }
    rows.finish();
    copy_async_wait<0>();
    __syncthreads();  // the next rows' copies overwrite what this block may still read
  }
}

/// Blocks for the rows of one run and key head.
template <int kM>
__host__ __device__ constexpr int run_blocks(int group) {
  return (kAttentionRun * group + kM * 16 - 1) / (kM * 16);
}

template <int kD, int kStages, int kM>
__global__ void __launch_bounds__(kThreads) attention_rows_shared(const Forward f) {
  wait_for_earlier_kernels();
  extern __shared__ __align__(1024) unsigned char shared[];
  const int blocks = run_blocks<kM>(f.group), index = static_cast<int>(blockIdx.x) / blocks;
  const int run = index / f.kv_heads, begin = static_cast<int>(blockIdx.x) % blocks * kM * 16;
  const int sequence = f.shared_runs[run * 2], sequences = f.shared_runs[run * 2 + 1];
  if (begin >= sequences * f.group) return;
  Part part(f, sequence, index % f.kv_heads);
  part.rows = sequences * f.group;  // a token each, side by side in q
  BlockRows<kD, kM> rows(f, part, begin, shared);
  rows.start();
  const int count = f.shared_keys[sequence] / kKeys;
  KeyTiles<kD, kStages> tiles(f, part, count * kKeys, shared + BlockRows<kD, kM>::kBytes);
  tiles.start();
  const int all[kM][2] = {};  // positions: nobody asks for those of rows that see whole tiles
  for (int tile = 0; tile < count; ++tile) {
    rows.visit(tiles.wait(tile), tile * kKeys, true, all);
    tiles.look_ahead(tile);
  }
  if (count > 0) rows.keep();
}

/// Blocks of a kernel that the card runs at once, or what MILES_CUDA_BLOCKS_AT_ONCE says instead.
template <auto kKernel>
int64_t blocks_at_once(int bytes) {
  static const int64_t blocks = [bytes] {
    int each = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kKernel, kThreads, bytes),
          "asking how many blocks a processor runs");
    return multiprocessors() * each;
  }();
  const char* const set = std::getenv("MILES_CUDA_BLOCKS_AT_ONCE");
  return set != nullptr ? std::atoi(set) : blocks;
}

template <int kD, int kStages, int kM>
void launch_shared(Exec& exec, const Forward& f) {
  constexpr int kBytes = kRowsBytes<kD, kStages, kM>;
  allow_shared<attention_rows_shared<kD, kStages, kM>>(kBytes);
  const auto grid = static_cast<unsigned>(f.runs * f.kv_heads * run_blocks<kM>(f.group));
  launch_chained<attention_rows_shared<kD, kStages, kM>>(exec, {grid, kThreads, kBytes},
                                                         "attention of shared keys", f);
}

template <int kD, int kStages>
void launch(Exec& exec, Forward f) {
  constexpr int kBytes = kRowsBytes<kD, kStages, 1>;
  constexpr auto* kAlone = attention_rows_alone<kD, kStages>;
  allow_shared<kAlone>(kBytes);
  const int64_t blocks = int64_t{f.sequences} * f.kv_heads;
  const int64_t at_once = blocks_at_once<kAlone>(kBytes);
  const int64_t bytes = int64_t{f.sequences} * f.heads * kPrefixFloats<kD> * 4;
  // Sequences of one token of which this kernel takes none have no use for prefixes.
  const bool shares = f.runs > 0 && f.group <= f.few_rows;
  if (shares && blocks > at_once && bytes <= std::ssize(exec.workspace)) {
    f.prefixes = reinterpret_cast<float*>(exec.workspace.data());
    // Blocks of 32 rows read the keys half as often, and take longer: for when those of 16 would
    // wait for each other.
    const int64_t narrow = blocks / kAttentionRun * run_blocks<1>(f.group);
    if (run_blocks<1>(f.group) > 1 && narrow > at_once)
      launch_shared<kD, kStages, 2>(exec, f);
    else
      launch_shared<kD, kStages, 1>(exec, f);
  }
  launch_chained<kAlone>(exec, {static_cast<unsigned>(blocks), kThreads, kBytes},
                         "attention of few rows", f);
}

/// Stages: what pays where there is room, and what every card has room for. Two tiles at 128
/// elements, and three blocks a processor, are 5% faster on an H200 than three tiles and two blocks.
template <int kD>
void launch(Exec& exec, const Forward& f) {
  constexpr int kStages = kD > 64 ? 2 : 4, kFewStages = kD > 128 ? 1 : kStages;
  static_assert(kRowsBytes<kD, kFewStages, 2> <= kLeastShared);
  if (kRowsBytes<kD, kStages, 2> <= shared_limit())
    launch<kD, kStages>(exec, f);
  else
    launch<kD, kFewStages>(exec, f);
}

}  // namespace

void attention_rows(Exec& exec, Forward f) {
  if (f.dim <= 64) return launch<64>(exec, f);
  if (f.dim <= 128) return launch<128>(exec, f);
  launch<256>(exec, f);
}

}  // namespace miles::cuda
