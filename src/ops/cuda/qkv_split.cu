#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/chained_launch.cuh"
#include "ops/cuda/head_team.cuh"
#include "ops/qkv_split.h"

namespace miles::cuda {
namespace {

using namespace head_team;

constexpr int kThreads = 384;  // at most
constexpr int kBlocks = 2;     // of so many threads, that a multiprocessor holds at once

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
__global__ void __launch_bounds__(kThreads, kBlocks) qkv_split_kernel(const Forward<T> f) {
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
    const unsigned groups = blocks_for(lanes, kThreads);
    const unsigned threads = 32 * blocks_for(lanes, 32 * groups);
    const int64_t resident = kBlocks * kThreads / (threads * groups);
    const auto blocks =
        static_cast<unsigned>(std::min(tokens, std::max<int64_t>(1, resident) * multiprocessors()));
    with_width(aligned, [&](auto wide) {
      launch_chained<qkv_split_kernel<T, wide()>>(exec, {dim3(blocks, groups), threads},
                                                  "qkv_split", f);
    });
  });
}

}  // namespace miles::cuda
