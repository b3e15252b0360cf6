// How the warps of Hopper's kernels of attention work together: the first four of a block copy
// tiles into shared memory, groups of four multiply them, and a ring of slots is between.
#pragma once

#include "ops/cuda/attention_mma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MILES_HOPPER 1  // elsewhere those kernels are empty
#endif

namespace miles::cuda {

inline constexpr int kCopyThreads = 128;

/// Barriers in shared memory, a phase at a time; `parity` is that of the phase to wait for.
__device__ inline void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives when this thread's copies so far are there.
__device__ inline void barrier_arrive_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_wait(uint32_t barrier, int parity) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
/// Shows ordinary writes of shared memory, copies among them, to the products.
__device__ inline void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// A number that is the same for all of a warp's lanes: so the compiler knows, and keeps what
/// follows from it, addresses of tiles above all, where the products want them.
__device__ inline int uniform(int x) {
  return __shfl_sync(kAllLanes, x, 0);
}
/// A barrier of one group of four warps.
__device__ inline void group_sync(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// A ring of kStages slots: the copying warps fill one when it is empty, the kGroups groups that
/// multiply empty it.
template <int kStages, int kGroups>
struct Ring {
  static constexpr int kBytes = kStages * 16;
  // Lanes of a warp that say it is done with a slot. One would do, after __syncwarp; racecheck,
  // which knows the last reader of an address alone and takes no word for it, wants the last ones
  // to say so themselves, and four readers share a tile's statistics.
  static constexpr int kReleasing = 4;
  uint32_t barriers;

  __device__ uint32_t full(int tile) const { return barriers + tile % kStages * 16; }
  __device__ uint32_t empty(int tile) const { return full(tile) + 8; }
  /// By one thread, before a barrier of the block.
  __device__ void init() const {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full(i), kCopyThreads);
      barrier_init(empty(i), kGroups * 4 * kReleasing);
    }
  }
  __device__ void wait_empty(int tile) const {
    if (tile >= kStages) barrier_wait(empty(tile), tile / kStages - 1 & 1);
  }
  __device__ void wait_full(int tile) const {
    barrier_wait(full(tile), tile / kStages & 1);
    show_to_products();
  }
  __device__ void release(int tile) const {
    __syncwarp();
    if (threadIdx.x % 32 >= 32 - kReleasing) barrier_arrive(empty(tile));
  }
  /// For a group that has nothing to do with a tile.
  __device__ void pass(int tile) const {
    wait_full(tile);
    release(tile);
  }
};

}  // namespace miles::cuda
