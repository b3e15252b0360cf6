// Arithmetic that kernels share: conversions, and sums over fixed trees. Everything is f32 and
// written so that bits don't depend on the launch: contraction is off (-fmad=false), a fused
// multiply-add is written where it is meant.
#pragma once

#include "ops/cuda/launch.h"

namespace miles::cuda {

__device__ inline float to_f32(float x) {
  return x;
}
__device__ inline float to_f32(bf16 x) {
  return __bfloat162float(x);
}

/// Rounded to nearest, ties to even.
template <class T>
__device__ T from_f32(float x);
template <>
__device__ inline float from_f32<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 from_f32<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

/// Rounded to T and back.
template <class T>
__device__ float rounded(float x) {
  return to_f32(from_f32<T>(x));
}

/// 16 bytes of T: what a thread moves at a time.
template <class T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T at[kCount];
};

inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// Over the 32 lanes of a warp, in one fixed order; every lane gets it.
__device__ inline float warp_sum(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int distance = 16; distance > 0; distance /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

/// Over a block of kThreads threads, in one fixed order; every thread gets it. `shared` has
/// kThreads / 32 floats, and may be used again after the next barrier.
template <int kThreads>
__device__ float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += shared[warp];
  return sum;
}
template <int kThreads>
__device__ float block_max(float x, float* shared) {
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float largest = shared[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) largest = fmaxf(largest, shared[warp]);
  return largest;
}

}  // namespace miles::cuda
