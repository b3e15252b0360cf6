// What the threads of a block tell each other while they draw a token: 1024 threads, as many as
// there are tiles in the largest vocabulary. Every function is called by all of them, and has a
// barrier before it writes to what it shared the last time.
#pragma once

#include "ops/cuda/numeric.cuh"

namespace miles::cuda {

constexpr int kSampleThreads = 1024;
constexpr int kSampleWarps = kSampleThreads / 32;
constexpr int kNobody = 0x7FFFFFFF;

__device__ inline int block_min(int x) {
  __shared__ int warps[kSampleWarps];
  x = __reduce_min_sync(kAllLanes, x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  return __reduce_min_sync(kAllLanes, warps[threadIdx.x % 32]);
}

/// Running sum over the threads in order.
struct Scan {
  double inclusive, total;
};
__device__ inline Scan block_scan(double x) {
  __shared__ double warps[kSampleWarps];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const double before = __shfl_up_sync(kAllLanes, x, distance);
    if (lane >= distance) x += before;
  }
  __syncthreads();
  if (lane == 31) warps[warp] = x;
  __syncthreads();
  double offset = 0, total = 0;
  for (unsigned w = 0; w < kSampleWarps; ++w) {
    if (w == warp) offset = total;
    total += warps[w];
  }
  return {offset + x, total};
}

/// The first thread with a share whose running sum passes `threshold`; the last one with a share
/// when rounding keeps the sum below. `left`: what the threads before it leave of the threshold.
struct Pick {
  int thread;
  double left;
};
__device__ inline Pick block_pick(double share, const Scan& scan, double threshold) {
  __shared__ double left;
  const int me = static_cast<int>(threadIdx.x);
  int thread = block_min(share > 0 && scan.inclusive > threshold ? me : kNobody);
  if (thread == kNobody) thread = -block_min(share > 0 ? -me : kNobody);
  if (me == thread) left = threshold - (scan.inclusive - share);
  __syncthreads();
  return {thread, left};
}

/// How much some of the tokens weigh, in units of 2^-43 of the likeliest, and how many they are.
/// Integers: a sum of up to 2^20 of them is exact, whatever its order.
struct Mass {
  unsigned long long weight;
  uint32_t count;
};
__device__ inline Mass warp_total(Mass m) {
  m.count = __reduce_add_sync(kAllLanes, m.count);
  for (int distance = 16; distance > 0; distance /= 2)
    m.weight += __shfl_xor_sync(kAllLanes, m.weight, distance);
  return m;
}
__device__ inline Mass block_total(Mass m) {
  __shared__ Mass warps[kSampleWarps];
  m = warp_total(m);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = m;
  __syncthreads();
  return warp_total(warps[threadIdx.x % 32]);
}

}  // namespace miles::cuda
