// How the lanes of a warp share a head where it is split off and rotated, forward and backward.
#pragma once

#include <bit>

#include "ops/cuda/eight.cuh"
#include "ops/cuda/numeric.cuh"
#include "ops/head_limits.h"

namespace miles::cuda::head_team {

// A team of lanes of one warp handles a head. Lane l has elements 8l … 8l + 7 of the first half and
// those of the second half that they are rotated with, so that a head lies in
// registers, and a team of 2^k lanes takes half a head up to 8·2^k wide.

static_assert(kMaxHeadDim <= 2 * 8 * 32, "a team has 32 lanes at most");

/// Lanes of a team: a function of the head's width alone.
inline unsigned team_of(int64_t dim) {
  return std::bit_ceil(static_cast<unsigned>(eights(dim / 2)));
}

__device__ inline float team_sum(float x, int team) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    if (distance < team) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

/// What a lane holds of a head: sixteen elements, as Raw<T> or as f32.
template <class Part>
struct Halves {
  Part a, b;  // of the first half, of the second
};
using Floats = Halves<Eight>;
template <class T>
__device__ Floats to_f32(const Halves<Raw<T>>& raw) {
  return {cuda::to_f32(raw.a), cuda::to_f32(raw.b)};
}

/// Where they are: the same for every vector as wide as a head.
template <bool kWide>
struct Lane {
  int i, half;  // first element of its eight; elements of half a head

  __device__ Lane(int team, int dim)
      : i(8 * (static_cast<int>(threadIdx.x) % team)), half(dim / 2) {}
  __device__ bool has_elements() const { return i < half; }

  /// Zeros where there is no such head.
  template <class T>
  __device__ Halves<Raw<T>> load(const T* head, bool there) const {
    const int left = there ? half - i : 0;
    return {load_raw<kWide>(head + i, left), load_raw<kWide>(head + i + half, left)};
  }
  template <class T>
  __device__ void store(T* head, const Halves<Raw<T>>& x) const {
    store_raw<kWide>(head + i, x.a, half - i);
    store_raw<kWide>(head + i + half, x.b, half - i);
  }
  template <class T>
  __device__ void store(T* head, const Floats& x) const {
    store(head, Halves<Raw<T>>{rounded_to<T>(x.a), rounded_to<T>(x.b)});
  }
};

__device__ inline float squares(const Floats& u) {
  float sum = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) sum = fmaf(u.a.at[e], u.a.at[e], sum);
#pragma unroll
  for (int e = 0; e < 8; ++e) sum = fmaf(u.b.at[e], u.b.at[e], sum);
  return sum;
}
struct NormExtents {
  int team, dim;
  float eps;
};
__device__ inline float inverse_rms(const Floats& u, const NormExtents& e) {
  return 1.0F / sqrtf(team_sum(squares(u), e.team) / static_cast<float>(e.dim) + e.eps);
}

}  // namespace miles::cuda::head_team
