// The tiles of keys and values that attention's forward visits, by asynchronous copies from pages
// or packed rows.
#pragma once

#include "ops/cuda/attention_forward.cuh"

namespace miles::cuda::attention_forward {

inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / 32;

/// The tiles of keys and values of a part, kStages of them in shared memory: where the rows of a
/// tile are is looked up one tile before its copies start, and those kStages − 1 tiles before its
/// use. One stage, where there is no room for two: a tile's copy starts when the one before is done
/// with.
template <int kD, int kStages>
class KeyTiles {
 public:
  static constexpr int kTileBytes = kKeys * kRowBytes<kD>;
  static constexpr int kRing = 4;  // tiles whose rows are known
  static constexpr int kBytes = kStages * 2 * kTileBytes + kRing * kKeys * 4;
  static_assert(kStages >= 1 && kStages <= kRing);

  /// Keys [0, seen) exist; what is beyond them in the last tile is zero.
  __device__ KeyTiles(const Forward& f, const Part& part, int seen, unsigned char* shared)
      : f_(f),
        seen_(seen),
        begin_(f.pages ? part.sequence * f.pages_per_sequence : f.kv_begin[part.sequence]),
        head_(part.kv_head),
        tiles_(shared_address(shared)),
        rows_(reinterpret_cast<int32_t*>(shared + kStages * 2 * kTileBytes)) {}

  __device__ int count() const { return (seen_ + kKeys - 1) / kKeys; }
  /// Tiles are visited from `first` on, one after the other.
  __device__ void start(int first = 0) {
    for (int i = threadIdx.x; i < kStages * kKeys; i += kThreads)
      rows_[(first * kKeys + i) % (kRing * kKeys)] = row_of(first * kKeys + i);
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) copy(first + tile);
  }
  /// Waits for a tile; everyone must be done with the one before. Returns its keys; values follow.
  __device__ uint32_t wait(int tile) {
    if constexpr (kStages == 1) {
      __syncthreads();
      copy(tile);
      copy_async_wait<0>();
      __syncthreads();
    } else {
      copy_async_wait<kStages - 2>();
      __syncthreads();
      copy(tile + kStages - 1);
    }
    if (threadIdx.x < kKeys) next_ = row_of((tile + kStages) * kKeys + threadIdx.x);
    return tiles_ + tile % kStages * 2 * kTileBytes;
  }
  /// After the tile's work, so that nobody waits for the page table.
  __device__ void look_ahead(int tile) {
    if (threadIdx.x < kKeys) rows_[(tile + kStages) % kRing * kKeys + threadIdx.x] = next_;
  }

 private:
  __device__ int32_t row_of(int key) const {
    if (key >= seen_) return -1;
    if (f_.pages == nullptr) return begin_ + key;
    return f_.pages[begin_ + key / f_.page_size] * f_.page_size + key % f_.page_size;
  }
  __device__ void copy(int tile) {
    if (tile * kKeys < seen_) {
      const int32_t* const rows = rows_ + tile % kRing * kKeys;
      const bf16* const from[] = {f_.k, f_.v};
      load_rows<kKeys, kD, kThreads>(
          tiles_ + tile % kStages * 2 * kTileBytes, from, f_.dim,
          [&](int row) { return (int64_t{rows[row]} * f_.kv_heads + head_) * f_.dim; });
    }
    copy_async_commit();
  }

  const Forward& f_;
  int seen_;
  int begin_;  // of the sequence: its first entry of the page table, or its first row
  int head_;
  uint32_t tiles_;
  int32_t* rows_;  // [kRing, kKeys]: rows of the pool, −1 beyond the last key
  int32_t next_ = -1;
};

}  // namespace miles::cuda::attention_forward
