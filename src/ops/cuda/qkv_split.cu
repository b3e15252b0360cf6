#include <algorithm>
#include <bit>

#include "ops/cuda/backend.h"
#include "ops/cuda/chained_launch.cuh"
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/eight.cuh"
#include "ops/qkv_split.h"

namespace miles::cuda {
namespace {

// A team of lanes of one warp handles a head. Lane l has elements 8l … 8l + 7 of the first half and
// those of the second half that they are rotated with, so that a head up to 512 wide lies in
// registers, and a team of 2^k lanes takes half a head up to 8·2^k wide.

constexpr int kThreads = 256;         // of the backward
constexpr int kForwardThreads = 512;  // at most

/// Lanes of a team: a function of the head's width alone.
unsigned team_of(int64_t dim) {
  return std::bit_ceil(static_cast<unsigned>(eights(dim / 2)));
}

__device__ inline float team_sum(float x, int team) {
  for (int distance = team / 2; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xFFFFFFFFU, x, distance);
  return x;
}

/// What a lane holds of a head: sixteen elements.
struct Halves {
  Eight a, b;  // of the first half, of the second
};
template <class T>
struct FetchedHalves {
  Fetched<T> a, b;
};
template <class T>
__device__ Halves widened(const FetchedHalves<T>& x) {
  return {cuda::widened(x.a), cuda::widened(x.b)};
}

/// Where they are: the same for every vector as wide as a head.
struct Lane {
  int64_t i, half;  // first element of its eight; elements of half a head
  bool active;      // false: there is no head for this team, or no element of it for this lane
  bool wide;

  template <class T>
  __device__ FetchedHalves<T> fetch(const T* head) const {
    if (!active) return {};
    return {cuda::fetch(head + i, half - i, wide), cuda::fetch(head + half + i, half - i, wide)};
  }
  template <class T>
  __device__ void store(T* head, const Halves& x) const {
    if (!active) return;
    cuda::store(head + i, x.a, half - i, wide);
    cuda::store(head + half + i, x.b, half - i, wide);
  }
};

__device__ inline float squares(const Halves& u) {
  float sum = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) sum = fmaf(u.a.at[e], u.a.at[e], sum);
#pragma unroll
  for (int e = 0; e < 8; ++e) sum = fmaf(u.b.at[e], u.b.at[e], sum);
  return sum;
}
__device__ inline float inverse_rms(const Halves& u, const Lane& lane, int team, float eps) {
  return 1.0F / sqrtf(team_sum(squares(u), team) / static_cast<float>(2 * lane.half) + eps);
}

template <class T>
struct Forward {
  const T* qkv;              // [tokens, heads + 2·kv_heads, dim]
  const T *q_norm, *k_norm;  // [dim] or null
  const int32_t *positions, *slots;
  const float* rope;  // [positions, dim]
  T *q, *k_pool, *v_pool;
  int64_t heads, kv_heads, dim;
  int team;
  float eps;
  bool wide;
};

/// The normalised head, rounded as the definition says.
template <class T>
__device__ Halves normalised(const Halves& u, const Halves& w, float r) {
  Halves y;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    y.a.at[e] = rounded<T>(rounded<T>(u.a.at[e] * r) * w.a.at[e]);
    y.b.at[e] = rounded<T>(rounded<T>(u.b.at[e] * r) * w.b.at[e]);
  }
  return y;
}

/// A block per token. All lanes of a warp go round the loop equally often: they exchange sums.
template <class T>
__global__ void __launch_bounds__(kForwardThreads) qkv_split_kernel(const Forward<T> f) {
  wait_for_earlier_kernels();
  const int64_t n = blockIdx.x, all = f.heads + 2 * f.kv_heads;
  const int team = threadIdx.x / f.team, teams = blockDim.x / f.team;
  Lane lane = {int64_t{8} * (threadIdx.x % f.team), f.dim / 2, false, f.wide};
  const bool has_elements = lane.i < lane.half;
  const int64_t slot = f.slots[n], position = f.positions[n];
  for (int64_t first = 0; first < all; first += teams) {
    const int64_t h = first + team;
    const bool query = h < f.heads, value = h >= f.heads + f.kv_heads;
    const T* const w = query ? f.q_norm : f.k_norm;
    lane.active = has_elements && h < all;
    const FetchedHalves<T> head = lane.fetch(f.qkv + (n * all + h) * f.dim);
    lane.active = lane.active && !value;
    const FetchedHalves<T> weights = w != nullptr ? lane.fetch(w) : FetchedHalves<T>{};
    const FetchedHalves<float> cos_sin = lane.fetch(f.rope + position * f.dim);
    Halves u = widened(head);
    const float r = inverse_rms(u, lane, f.team, f.eps);
    // Keys and values without a slot go nowhere.
    lane.active = has_elements && h < (slot < 0 ? f.heads : all);
    if (value) {
      lane.store(f.v_pool + (slot * f.kv_heads + h - f.heads - f.kv_heads) * f.dim, u);
      continue;
    }
    if (w != nullptr) u = normalised<T>(u, widened(weights), r);
    const Halves angle = widened(cos_sin);
    Halves y;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float a = u.a.at[e], b = u.b.at[e], c = angle.a.at[e], s = angle.b.at[e];
      y.a.at[e] = a * c - b * s;
      y.b.at[e] = b * c + a * s;
    }
    lane.store(query ? f.q + (n * f.heads + h) * f.dim
                     : f.k_pool + (slot * f.kv_heads + h - f.heads) * f.dim,
               y);
  }
}

/// The heads of one kind (queries, keys or values) in the backward.
template <class T>
struct Part {
  const T* d;       // [tokens, heads, dim] gradient of what the forward wrote
  const T* w;       // [dim], or null: no norm
  float* partials;  // [chunks, dim]: dw of each chunk of tokens; null with w
  int64_t heads;    // of this kind
  int64_t offset;   // of the first one in a row of qkv, heads
  bool rotated;     // values are not
};

template <class T>
struct Backward {
  Part<T> parts[3];
  const T* qkv;  // [tokens, row]
  T* dqkv;       // [tokens, row]
  const int32_t* positions;
  const float* rope;
  int64_t tokens, row, dim;
  int64_t chunk;  // tokens of a block
  int team;
  float eps;
  bool wide;
};

/// The gradient of the head before its rotation.
__device__ inline Halves rotated_back(const Halves& d, const Halves& angle) {
  Halves x;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float a = d.a.at[e], b = d.b.at[e], c = angle.a.at[e], s = angle.b.at[e];
    x.a.at[e] = a * c + b * s;
    x.b.at[e] = b * c - a * s;
  }
  return x;
}

__device__ inline float norm_dot(const Eight& d, const Eight& w, const Eight& u, float r,
                                 float dot) {
#pragma unroll
  for (int e = 0; e < 8; ++e) dot = fmaf(d.at[e] * w.at[e], u.at[e] * r, dot);
  return dot;
}

struct NormFactors {
  float r, mean;  // 1/rms; the mean of g∘x̂
};
/// d becomes the gradient before the norm; dw gets its share.
template <class T>
__device__ void norm_backward(Eight& d, const Eight& w, const Eight& u, const NormFactors& f,
                              Eight& dw) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float normalised = u.at[e] * f.r, after = d.at[e];
    d.at[e] = (after * w.at[e] - normalised * f.mean) * f.r;
    dw.at[e] = fmaf(after, rounded<T>(normalised), dw.at[e]);
  }
}

/// Adds up what the lanes hold that have the same elements: first in a warp, then the warps in
/// order.
__device__ inline void write_sums(const Halves& sums, const Lane& lane, int team, float* to) {
  __shared__ float warps[kThreads / 32][512];  // ops/qkv_split.cpp: no head is wider
  float* const mine = warps[threadIdx.x / 32];
  const bool writes = threadIdx.x % 32 < static_cast<unsigned>(team);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    float a = sums.a.at[e], b = sums.b.at[e];
    for (int distance = 16; distance >= team; distance /= 2) {
      a += __shfl_xor_sync(0xFFFFFFFFU, a, distance);
      b += __shfl_xor_sync(0xFFFFFFFFU, b, distance);
    }
    if (!writes || lane.i + e >= lane.half) continue;
    mine[lane.i + e] = a;
    mine[lane.half + lane.i + e] = b;
  }
  __syncthreads();
  for (int64_t d = threadIdx.x; d < 2 * lane.half; d += kThreads) {
    float total = 0;
    for (int warp = 0; warp < kThreads / 32; ++warp) total += warps[warp][d];
    to[d] = total;
  }
}

/// A block per chunk of tokens and kind of head; its teams take (token, head) pairs by turns.
template <class T>
__global__ void __launch_bounds__(kThreads) qkv_split_backward_kernel(const Backward<T> g) {
  const Part<T>& part = g.parts[blockIdx.y];
  const int64_t begin = blockIdx.x * g.chunk;
  const auto heads = static_cast<unsigned>(part.heads);
  const unsigned pairs = static_cast<unsigned>(min(g.chunk, g.tokens - begin)) * heads;
  const unsigned team = threadIdx.x / g.team, teams = kThreads / g.team;
  Lane lane = {int64_t{8} * (threadIdx.x % g.team), g.dim / 2, false, g.wide};
  Halves dw = {};
  for (unsigned first = 0; first < pairs; first += teams) {
    const unsigned pair = first + team;
    lane.active = pair < pairs && lane.i < lane.half;
    const int64_t n = lane.active ? begin + pair / heads : begin, h = pair % heads;
    const int64_t at = n * g.row + (part.offset + h) * g.dim;
    const FetchedHalves<T> after = lane.fetch(part.d + (n * part.heads + h) * g.dim);
    FetchedHalves<T> before = {}, weights = {};
    FetchedHalves<float> cos_sin = {};
    if (part.w != nullptr) before = lane.fetch(g.qkv + at), weights = lane.fetch(part.w);
    if (part.rotated) cos_sin = lane.fetch(g.rope + g.positions[n] * g.dim);
    Halves d = widened(after);
    if (part.rotated) d = rotated_back(d, widened(cos_sin));
    if (part.w != nullptr) {
      const Halves u = widened(before), w = widened(weights);
      NormFactors f = {inverse_rms(u, lane, g.team, g.eps), 0};
      const float dot = norm_dot(d.b, w.b, u.b, f.r, norm_dot(d.a, w.a, u.a, f.r, 0));
      f.mean = team_sum(dot, g.team) / static_cast<float>(g.dim);
      if (lane.active) {
        norm_backward<T>(d.a, w.a, u.a, f, dw.a);
        norm_backward<T>(d.b, w.b, u.b, f, dw.b);
      }
    }
    lane.store(g.dqkv + at, d);
  }
  if (part.w != nullptr) write_sums(dw, lane, g.team, part.partials + blockIdx.x * g.dim);
}

template <class T>
Backward<T> backward_of(const QkvSplitBackwardArgs& args) {
  const int64_t heads = args.dq.dim(1), kv_heads = args.dk.dim(1), dim = args.dq.dim(2);
  const auto part = [](const Tensor& d, const Tensor& w, int64_t offset, bool rotated) -> Part<T> {
    return {pointer<T>(d), pointer<T>(w), nullptr, d.dim(1), offset, rotated};
  };
  Backward<T> g = {
      .parts = {part(args.dq, args.q_norm, 0, true), part(args.dk, args.k_norm, heads, true),
                part(args.dv, {}, heads + kv_heads, false)},
      .qkv = pointer<T>(args.qkv),
      .dqkv = pointer<T>(args.dqkv),
      .positions = pointer<int32_t>(args.positions),
      .rope = pointer<float>(args.rope),
      .tokens = args.dq.dim(0),
      .row = (heads + 2 * kv_heads) * dim,
      .dim = dim,
      .chunk = 0,
      .team = static_cast<int>(team_of(dim)),
      .eps = args.eps,
      .wide = false};
  g.wide = is_wide(dim / 2, g.parts[0].d, g.parts[1].d, g.parts[2].d, g.parts[0].w, g.parts[1].w,
                   g.qkv, g.dqkv) &&
           is_aligned(g.rope);
  return g;
}

}  // namespace

void qkv_split(Exec& exec, const QkvSplitArgs& args) {
  const int64_t tokens = args.q.dim(0);
  if (tokens == 0) return;
  with_type(args.q.dtype(), [&](auto type) {
    using T = decltype(type);
    Forward<T> f = {.qkv = pointer<T>(args.qkv),
                    .q_norm = pointer<T>(args.q_norm),
                    .k_norm = pointer<T>(args.k_norm),
                    .positions = pointer<int32_t>(args.positions),
                    .slots = pointer<int32_t>(args.slots),
                    .rope = pointer<float>(args.rope),
                    .q = pointer<T>(args.q),
                    .k_pool = pointer<T>(args.k_pool),
                    .v_pool = pointer<T>(args.v_pool),
                    .heads = args.q.dim(1),
                    .kv_heads = args.k_pool.dim(1),
                    .dim = args.q.dim(2),
                    .team = static_cast<int>(team_of(args.q.dim(2))),
                    .eps = args.eps,
                    .wide = false};
    f.wide = is_wide(f.dim / 2, f.qkv, f.q_norm, f.k_norm, f.q, f.k_pool, f.v_pool) &&
             is_aligned(f.rope);
    const int64_t lanes = (f.heads + 2 * f.kv_heads) * f.team;
    const auto threads =
        static_cast<unsigned>(std::min<int64_t>(kForwardThreads, (lanes + 31) / 32 * 32));
    launch_chained<qkv_split_kernel<T>>(exec, {static_cast<unsigned>(tokens), threads}, "qkv_split",
                                        f);
  });
}

void qkv_split_backward(Exec& exec, const QkvSplitBackwardArgs& args) {
  if (args.dq.dim(0) == 0) return;
  with_type(args.dq.dtype(), [&](auto type) {
    using T = decltype(type);
    auto g = backward_of<T>(args);
    const RowChunks chunks = row_chunks(exec, {g.tokens, 2 * g.dim});
    g.chunk = chunks.size;
    auto* const partials = reinterpret_cast<float*>(exec.workspace.data());
    g.parts[0].partials = partials;
    g.parts[1].partials = partials + chunks.count * g.dim;
    qkv_split_backward_kernel<T>
        <<<dim3(static_cast<unsigned>(chunks.count), 3), kThreads, 0, stream_of(exec)>>>(g);
    check_launch("qkv_split_backward");
    const auto add = [&](const Tensor& dw, int64_t norm) {
      const float* const sums = partials + norm * chunks.count * g.dim;
      if (dw) add_column_sums(exec, {sums, chunks.count, g.dim, g.dim}, pointer<float>(dw));
    };
    add(args.dq_norm, 0);
    add(args.dk_norm, 1);
  });
}

}  // namespace miles::cuda
