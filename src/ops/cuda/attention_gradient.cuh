// What the kernels of attention's backward share: their arguments, a sequence's part of them, and
// tiles of rows of q and dout.
#pragma once

#include "ops/cuda/attention_tile.cuh"

namespace miles::cuda::attention_gradient {

struct Backward {
  // Shapes as in AttentionBackwardArgs: N tokens, B sequences.
  const bf16* q;               // [N, heads, dim]
  const bf16 *k, *v;           // [N, kv_heads, dim]
  const bf16 *out, *dout;      // [N, heads, dim]
  const float* lse;            // [N, heads]
  const int32_t* query_begin;  // [B + 1]
  bf16* dq;                    // [N, heads, dim]
  bf16 *dk, *dv;               // [N, kv_heads, dim]
  float2*
      statistics;  // [key heads of this launch, rows]: lse in units of log 2, rowsum(dout ∘ out)
  unsigned char* ds;  // [key heads of this launch, ds_tiles] tiles of attention_ds.cuh; or null
  int64_t ds_tiles;   // of a key head
  int64_t rows;       // of a key head, all sequences
  int sequences, heads, kv_heads;  // B, and the shapes' extents
  int group;                       // query heads on a key head
  int dim;                         // elements of a head
  int first_head;                  // key head of blockIdx.y = 0
  float scale, scale_log2;         // of scores; and to exponents of 2
};

/// One sequence's part of a key head.
struct Part {
  int kv_head, begin, tokens, rows;
  const float2* statistics;  // of its first row

  __device__ Part(const Backward& f, int b)
      : kv_head(f.first_head + static_cast<int>(blockIdx.y)), begin(f.query_begin[b]) {
    tokens = f.query_begin[b + 1] - begin;
    rows = tokens * f.group;
    statistics = f.statistics + int64_t{blockIdx.y} * f.rows + int64_t{begin} * f.group;
  }
  /// Row of q, as one of [N·Hq].
  __device__ int64_t row_at(const Backward& f, int row) const {
    return int64_t{begin + row / f.group} * f.heads + kv_head * f.group + row % f.group;
  }
  /// First element of a key.
  __device__ int64_t key_at(const Backward& f, int key) const {
    return (int64_t{begin + key} * f.kv_heads + kv_head) * f.dim;
  }
};

/// The weight of a pair and the gradient of its score, in place of the score and of dout · v.
__device__ inline void differentiate(float& s, float& dp, float scale_log2, float lse,
                                     float delta) {
  s = exp2_fast(fmaf(s, scale_log2, -lse));
  dp = s * (dp - delta);
}

/// Tiles of rows of q and dout for backward_keys, two in shared memory; see KeyTiles of the
/// forward.
template <int kD, int kRows, int kThreads>
class RowTiles {
 public:
  static constexpr int kTileBytes = kRows * kRowBytes<kD>;
  static constexpr int kRing = 4;
  static constexpr int kBytes = 4 * kTileBytes + 2 * kRows * 8 + 2 * kRing * kRows * 4;

  __device__ RowTiles(const Backward& f, const Part& part, int first, unsigned char* shared)
      : f_(f),
        part_(part),
        first_(first),
        tiles_(shared_address(shared)),
        statistics_(reinterpret_cast<float2*>(shared + 4 * kTileBytes)),
        at_(reinterpret_cast<int32_t*>(statistics_ + 2 * kRows)),
        token_(at_ + kRing * kRows) {}

  __device__ int count() const { return (part_.rows - first_ + kRows - 1) / kRows; }
  __device__ void start() {
    look_ahead(-2);
    look_ahead(-1);
    __syncthreads();
    copy(0);
  }
  /// Waits for a tile; everyone must be done with the one before. Returns its q; dout follows.
  __device__ uint32_t wait(int tile) {
    copy_async_wait<0>();
    __syncthreads();
    copy(tile + 1);
    return tiles_ + tile % 2 * 2 * kTileBytes;
  }
  /// Where the rows of tile + 2 are, while a tile is in work.
  __device__ void look_ahead(int tile) {
    if (threadIdx.x >= kRows) return;
    const int row = first_ + (tile + 2) * kRows + threadIdx.x;
    const int slot = (tile + 2) % kRing * kRows + threadIdx.x;
    const bool exists = row < part_.rows;
    at_[slot] = exists ? static_cast<int32_t>(part_.row_at(f_, row)) : -1;
    token_[slot] = exists ? row / f_.group : -1;
  }
  __device__ const float2* statistics(int tile) const { return statistics_ + tile % 2 * kRows; }
  __device__ const int32_t* tokens(int tile) const { return token_ + tile % kRing * kRows; }

 private:
  __device__ void copy(int tile) {
    if (tile < count()) {
      const int32_t* const at = at_ + tile % kRing * kRows;
      const bf16* const from[] = {f_.q, f_.dout};
      load_rows<kRows, kD, kThreads>(tiles_ + tile % 2 * 2 * kTileBytes, from, f_.dim,
                                     [&](int row) { return int64_t{at[row]} * f_.dim; });
      if (threadIdx.x < kRows) {
        const int row = first_ + tile * kRows + threadIdx.x;
        const bool exists = row < part_.rows;
        copy_async_8(shared_address(statistics(tile) + threadIdx.x),
                     part_.statistics + (exists ? row : 0), exists);
      }
    }
    copy_async_commit();
  }

  const Backward& f_;
  const Part& part_;
  int first_;
  uint32_t tiles_;
  float2* statistics_;  // [2, kRows]
  int32_t* at_;         // [kRing, kRows]: rows of q, −1 beyond the last
  int32_t* token_;      // [kRing, kRows]: of the sequence, −1 beyond the last
};

}  // namespace miles::cuda::attention_gradient
