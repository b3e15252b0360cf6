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
constexpr int kForwardThreads = 384;  // at most
constexpr int kForwardBlocks = 2;     // of so many threads, that a multiprocessor holds at once
constexpr int kCopiedHeads = 4;       // of values' gradients, that a team reads at a time
constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// Lanes of a team: a function of the head's width alone.
unsigned team_of(int64_t dim) {
  return std::bit_ceil(static_cast<unsigned>(eights(dim / 2)));
}

/// Of the device in use.
int64_t multiprocessors() {
  static const int count = [] {
    int device = 0, value = 0;
    check(cudaGetDevice(&device), "asking for the device");
    check(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device),
          "asking for the device");
    return value;
  }();
  return count;
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

template <class T>
struct Forward {
  const T* qkv;              // [tokens, heads + 2·kv_heads, dim]
  const T *q_norm, *k_norm;  // [dim] or null
  const int32_t *positions, *slots;
  const float* rope;  // [positions, dim]
  T *q, *k_pool, *v_pool;
  int tokens, heads, kv_heads, dim, team;
  float eps;
};

/// The normalised head, rounded as the definition says.
template <class T>
__device__ Eight normalised(const Eight& u, const Eight& w, float r) {
  Eight y;
#pragma unroll
  for (int e = 0; e < 8; ++e) y.at[e] = u.at[e] * r;
  y = rounded<T>(y);
#pragma unroll
  for (int e = 0; e < 8; ++e) y.at[e] *= w.at[e];
  return rounded<T>(y);
}

__device__ inline Floats rotated(const Floats& u, const Floats& angle) {
  Floats y;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float a = u.a.at[e], b = u.b.at[e], c = angle.a.at[e], s = angle.b.at[e];
    y.a.at[e] = a * c - b * s;
    y.b.at[e] = b * c + a * s;
  }
  return y;
}

/// A team has one head, of every gridDim.x-th token; the next token is read while one is computed.
/// Positions and slots come for 32 tokens at once, a lane each. All lanes of a warp go round the
/// loop equally often: they exchange sums.
template <class T, bool kWide>
__global__ void __launch_bounds__(kForwardThreads, kForwardBlocks)
    qkv_split_kernel(const Forward<T> f) {
  wait_for_earlier_kernels();
  const Lane<kWide> lane(f.team, f.dim);
  const int team = static_cast<int>((blockIdx.y * blockDim.x + threadIdx.x) / f.team);
  const int h = min(team, f.heads + 2 * f.kv_heads - 1), key = h - f.heads,
            value = key - f.kv_heads;
  const bool keeps = h == team && lane.has_elements();  // there may be more teams than heads
  const T* const norm = key < 0 ? f.q_norm : value < 0 ? f.k_norm : nullptr;
  const Halves<Raw<T>> weights = lane.load(norm, norm != nullptr);
  T* const to = key < 0     ? f.q + h * f.dim
                : value < 0 ? f.k_pool + key * f.dim
                            : f.v_pool + value * f.dim;
  const int stride = (key < 0 ? f.heads : f.kv_heads) * f.dim;
  const int64_t token = static_cast<int64_t>(f.heads + 2 * f.kv_heads) * f.dim;
  const T* from = f.qkv + blockIdx.x * token + h * f.dim;
  const int step = static_cast<int>(gridDim.x), begin = static_cast<int>(blockIdx.x);
  Halves<Raw<T>> next = lane.load(from, true);
  int32_t positions = 0, slots = 0;
  for (int n = begin, turn = 0; n < f.tokens; n += step, turn = (turn + 1) % 32) {
    if (turn == 0) {
      const int64_t mine = n + static_cast<int64_t>(threadIdx.x % 32) * step;
      positions = mine < f.tokens ? f.positions[mine] : 0;
      slots = mine < f.tokens ? f.slots[mine] : 0;
    }
    const Halves<Raw<T>> head = next;
    from += step * token;
    next = lane.load(from, n + step < f.tokens);
    const int64_t position = __shfl_sync(kAllLanes, positions, turn);
    const int slot = __shfl_sync(kAllLanes, slots, turn);
    const Floats angle = to_f32(lane.load(f.rope + position * f.dim, value < 0));
    Floats u = to_f32(head);
    float r = 0;
    if (__any_sync(kAllLanes, norm != nullptr)) r = inverse_rms(u, {f.team, f.dim, f.eps});
    const int row = key < 0 ? n : slot;
    if (!keeps || row < 0) continue;  // keys and values without a slot go nowhere
    T* const place = to + static_cast<int64_t>(row) * stride;
    if (value >= 0) {
      lane.store(place, head);
      continue;
    }
    if (norm != nullptr) {
      const Floats w = to_f32(weights);
      u = {normalised<T>(u.a, w.a, r), normalised<T>(u.b, w.b, r)};
    }
    lane.store(place, rotated(u, angle));
  }
}

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
  __shared__ float warps[kThreads / 32][512];  // ops/qkv_split.cpp: no head is wider
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
                    .tokens = static_cast<int>(tokens),
                    .heads = static_cast<int>(args.q.dim(1)),
                    .kv_heads = static_cast<int>(args.k_pool.dim(1)),
                    .dim = static_cast<int>(args.q.dim(2)),
                    .team = static_cast<int>(team_of(args.q.dim(2))),
                    .eps = args.eps};
    const bool aligned = is_wide(f.dim / 2, f.qkv, f.q_norm, f.k_norm, f.q, f.k_pool, f.v_pool) &&
                         is_aligned(f.rope);
    const int64_t lanes = int64_t{1} * (f.heads + 2 * f.kv_heads) * f.team;
    const unsigned groups = blocks_for(lanes, kForwardThreads);
    const unsigned threads = 32 * blocks_for(lanes, 32 * groups);
    const int64_t resident = kForwardBlocks * kForwardThreads / (threads * groups);
    const auto blocks =
        static_cast<unsigned>(std::min(tokens, std::max<int64_t>(1, resident) * multiprocessors()));
    with_width(aligned, [&](auto wide) {
      launch_chained<qkv_split_kernel<T, wide()>>(exec, {dim3(blocks, groups), threads},
                                                  "qkv_split", f);
    });
  });
}

void qkv_split_backward(Exec& exec, const QkvSplitBackwardArgs& args) {
  if (args.dq.dim(0) == 0) return;
  with_type(args.dq.dtype(), [&](auto type) {
    using T = decltype(type);
    auto g = backward_of<T>(args);
    const RowChunks chunks = row_chunks(exec, {g.tokens, int64_t{2} * g.dim});
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
