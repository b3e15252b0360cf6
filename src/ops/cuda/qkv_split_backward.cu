#include "ops/cuda/backend.h"
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/head_team.cuh"
#include "ops/head_limits.h"
#include "ops/qkv_split.h"

namespace miles::cuda {
namespace {

using namespace head_team;

constexpr int kThreads = 256;
constexpr int kCopiedHeads = 4;  // of values' gradients, that a team reads at a time

/// The heads of one kind (queries, keys or values) in the backward.
template <class T>
struct Part {
  const T* d;       // [tokens, heads, dim] gradient of what the forward wrote
  const T* w;       // [dim], or null: no norm
  float* partials;  // [chunks, dim]: dw of each chunk of tokens; null with w
  int heads;        // of this kind
  int offset;       // of the first one in a row of qkv, heads
  bool rotated;     // values are not
};

template <class T>
struct Backward {
  Part<T> parts[3];
  const T* qkv;  // [tokens, row]
  T* dqkv;       // [tokens, row]
  const int32_t* positions;
  const float* rope;
  int tokens, row, dim;
  int chunk;  // tokens of a block
  int team;
  float eps;
  bool wide;
};

/// The gradient of the head before its rotation.
__device__ inline Floats rotated_back(const Floats& d, const Floats& angle) {
  Floats x;
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
  Eight normalised;
#pragma unroll
  for (int e = 0; e < 8; ++e) normalised.at[e] = u.at[e] * f.r;
  const Eight seen = rounded<T>(normalised);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    dw.at[e] = fmaf(d.at[e], seen.at[e], dw.at[e]);
    d.at[e] = (d.at[e] * w.at[e] - normalised.at[e] * f.mean) * f.r;
  }
}

/// Adds up what the lanes hold that have the same elements: first in a warp, then the warps in
/// order.
template <bool kWide>
__device__ void write_sums(const Floats& sums, const Lane<kWide>& lane, int team, float* to) {
  __shared__ float warps[kThreads / 32][kMaxHeadDim];
  float* const mine = warps[threadIdx.x / 32];
  const bool writes = threadIdx.x % 32 < static_cast<unsigned>(team);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    float a = sums.a.at[e], b = sums.b.at[e];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      if (distance < team) break;
      a += __shfl_xor_sync(kAllLanes, a, distance);
      b += __shfl_xor_sync(kAllLanes, b, distance);
    }
    if (!writes || lane.i + e >= lane.half) continue;
    mine[lane.i + e] = a;
    mine[lane.half + lane.i + e] = b;
  }
  __syncthreads();
  for (int64_t d = threadIdx.x; d < 2 * lane.half; d += kThreads) {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp) total += warps[warp][d];
    to[d] = total;
  }
}

/// The (token, head) pairs of a block, in order; its teams take them by turns.
template <class T>
struct Pairs {
  const Backward<T>& g;
  const Part<T>& part;
  int64_t begin;          // first token
  unsigned heads, count;  // of the part; pairs of the block
  unsigned first, step;   // of this team; teams

  __device__ explicit Pairs(const Backward<T>& of)
      : g(of),
        part(of.parts[blockIdx.y]),
        begin(static_cast<int64_t>(blockIdx.x) * of.chunk),
        heads(static_cast<unsigned>(part.heads)),
        count(static_cast<unsigned>(min(int64_t{of.chunk}, of.tokens - begin)) * heads),
        first(threadIdx.x / of.team),
        step(kThreads / of.team) {}

  __device__ const T* gradient(unsigned pair) const {
    return part.d + (begin * heads + pair) * g.dim;
  }
};

/// What a team reads of a pair, all of it before it uses any.
template <class T>
struct PairData {
  Halves<Raw<T>> d, u;
  int64_t at;  // where the head lies in qkv and dqkv
  int32_t position;

  template <bool kWide>
  __device__ PairData(const Pairs<T>& of, const Lane<kWide>& lane, unsigned pair) {
    const bool there = pair < of.count;
    const int64_t token = of.begin + pair / of.heads;
    const int head = of.part.offset + static_cast<int>(pair % of.heads);
    at = token * of.g.row + head * of.g.dim;
    position = there ? of.g.positions[token] : 0;
    d = lane.load(of.gradient(pair), there);
    u = lane.load(of.g.qkv + at, there && of.part.w != nullptr);
  }
};

template <class T, bool kWide>
__device__ void copy_values(const Pairs<T>& of, const Lane<kWide>& lane) {
  for (unsigned first = of.first; first < of.count; first += kCopiedHeads * of.step) {
    Halves<Raw<T>> d[kCopiedHeads];
#pragma unroll
    for (unsigned k = 0; k < kCopiedHeads; ++k) {
      const unsigned pair = first + k * of.step;
      d[k] = lane.load(of.gradient(pair), pair < of.count);
    }
#pragma unroll
    for (unsigned k = 0; k < kCopiedHeads; ++k) {
      const unsigned pair = first + k * of.step;
      const int64_t head = of.part.offset + pair % of.heads;
      if (pair < of.count)
        lane.store(of.g.dqkv + (of.begin + pair / of.heads) * of.g.row + head * of.g.dim, d[k]);
    }
  }
}

/// A block per chunk of tokens and kind of head. The next pair is read while one is computed.
template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads, 2) qkv_split_backward_kernel(const Backward<T> g) {
  const Pairs<T> of(g);
  const Part<T>& part = of.part;
  const Lane<kWide> lane(g.team, g.dim);
  if (!part.rotated) return copy_values(of, lane);
  const Halves<Raw<T>> weights = lane.load(part.w, part.w != nullptr);
  Floats dw = {};
  PairData<T> next(of, lane, of.first);
  for (unsigned begin = 0; begin < of.count; begin += of.step) {
    const PairData<T> now = next;
    const unsigned pair = begin + of.first;
    const bool there = pair < of.count;
    const int64_t position = now.position;
    const Floats angle = to_f32(lane.load(g.rope + position * g.dim, true));
    next = PairData<T>(of, lane, pair + of.step);
    Floats d = rotated_back(to_f32(now.d), angle);
    if (part.w != nullptr) {
      const Floats u = to_f32(now.u), w = to_f32(weights);
      NormFactors f = {inverse_rms(u, {g.team, g.dim, g.eps}), 0};
      const float dot = norm_dot(d.b, w.b, u.b, f.r, norm_dot(d.a, w.a, u.a, f.r, 0));
      f.mean = team_sum(dot, g.team) / static_cast<float>(g.dim);
      if (there && lane.has_elements()) {
        norm_backward<T>(d.a, w.a, u.a, f, dw.a);
        norm_backward<T>(d.b, w.b, u.b, f, dw.b);
      }
    }
    if (there) lane.store(g.dqkv + now.at, d);
  }
  if (part.w != nullptr) write_sums(dw, lane, g.team, part.partials + blockIdx.x * g.dim);
}

template <class T>
Backward<T> backward_of(const QkvSplitBackwardArgs& args) {
  const int64_t heads = args.dq.dim(1), kv_heads = args.dk.dim(1), dim = args.dq.dim(2);
  const auto part = [](const Tensor& d, const Tensor& w, int64_t offset, bool rotated) -> Part<T> {
    return {.d = pointer<T>(d),
            .w = pointer<T>(w),
            .partials = nullptr,
            .heads = static_cast<int>(d.dim(1)),
            .offset = static_cast<int>(offset),
            .rotated = rotated};
  };
  Backward<T> g = {
      .parts = {part(args.dq, args.q_norm, 0, true), part(args.dk, args.k_norm, heads, true),
                part(args.dv, {}, heads + kv_heads, false)},
      .qkv = pointer<T>(args.qkv),
      .dqkv = pointer<T>(args.dqkv),
      .positions = pointer<int32_t>(args.positions),
      .rope = pointer<float>(args.rope),
      .tokens = static_cast<int>(args.dq.dim(0)),
      .row = static_cast<int>((heads + 2 * kv_heads) * dim),
      .dim = static_cast<int>(dim),
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

void qkv_split_backward(Exec& exec, const QkvSplitBackwardArgs& args) {
  if (args.dq.dim(0) == 0) return;
  with_type(args.dq.dtype(), [&](auto type) {
    using T = decltype(type);
    auto g = backward_of<T>(args);
    const RowChunks chunks = row_chunks({g.tokens, int64_t{2} * g.dim});
    g.chunk = static_cast<int>(chunks.size);
    auto* const partials = reinterpret_cast<float*>(exec.workspace.data());
    g.parts[0].partials = partials;
    g.parts[1].partials = partials + chunks.count * g.dim;
    with_width(g.wide, [&](auto wide) {
      qkv_split_backward_kernel<T, wide()>
          <<<dim3(static_cast<unsigned>(chunks.count), 3), kThreads, 0, stream_of(exec)>>>(g);
    });
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
