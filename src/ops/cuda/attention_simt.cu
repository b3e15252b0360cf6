// A warp for each row of the result. Lanes share the keys of a tile (or the queries that see a key)
// for the dot products, and the elements of a head for the weighted sums; every sum is in one
// order.
#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/attention_simt.h"
#include "ops/cuda/numeric.cuh"
#include "ops/head_limits.h"

namespace miles::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kKeys = kAttentionTile;
constexpr int kSlots = kMaxHeadDim / 32;  // elements of a head that a lane sums

/// Extents that all kernels need.
struct Extents {
  const int32_t* query_begin;
  int sequences, heads, kv_heads, group, dim;
  int64_t rows;  // of the result
  float scale;
};

template <class T>
struct SimtForward {
  Extents e;
  const T *q, *k, *v;
  const int32_t *context, *pages, *kv_begin;
  int page_size, pages_per_sequence;
  T* out;
  float* lse;
};

template <class T>
struct SimtBackward {
  Extents e;
  const T *q, *k, *v, *out, *dout;
  const float* lse;
  T *dq, *dk, *dv;
};

__device__ int64_t warp_index() {
  return (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
}

__device__ int find_sequence(const Extents& e, int64_t token) {
  int low = 0, high = e.sequences;  // query_begin[low] ≤ token < query_begin[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (e.query_begin[middle] <= token ? low : high) = middle;
  }
  return low;
}

template <class T>
__device__ float dot(const T* a, const T* b, int dim) {
  float sum = 0;
  for (int d = 0; d < dim; ++d) sum = fmaf(to_f32(a[d]), to_f32(b[d]), sum);
  return sum;
}

/// sum[i] += weight · x[lane + 32·i]
template <class T>
__device__ void add_weighted(float (&sum)[kSlots], float weight, const T* x, int dim, int lane) {
#pragma unroll
  for (int i = 0; i < kSlots; ++i)
    if (lane + i * 32 < dim) sum[i] = fmaf(weight, to_f32(x[lane + i * 32]), sum[i]);
}

template <class T>
__device__ void store_scaled(T* to, const float (&sum)[kSlots], float scale, int dim, int lane) {
#pragma unroll
  for (int i = 0; i < kSlots; ++i)
    if (lane + i * 32 < dim) to[lane + i * 32] = from_f32<T>(sum[i] * scale);
}

template <class T>
__global__ void __launch_bounds__(kThreads) simt_forward(const SimtForward<T> f) {
  const Extents& e = f.e;
  const int64_t row = warp_index();  // token-major, then heads
  if (row >= e.rows) return;
  const int lane = threadIdx.x % 32;
  const int64_t token = row / e.heads;
  const int kv_head = static_cast<int>(row % e.heads) / e.group;
  const int b = find_sequence(e, token);
  const int position = f.context[b] - (e.query_begin[b + 1] - static_cast<int>(token));
  const auto key_offset = [&](int key) {
    const int64_t slot =
        f.pages == nullptr
            ? int64_t{f.kv_begin[b]} + key
            : int64_t{f.pages[int64_t{b} * f.pages_per_sequence + key / f.page_size]} *
                      f.page_size +
                  key % f.page_size;
    return (slot * e.kv_heads + kv_head) * e.dim;
  };
  const float scale_log2 = e.scale * kLog2E;
  float top = -infinity(), sum = 0, acc[kSlots] = {};
  for (int tile = 0; tile <= position; tile += kKeys) {
    const int visible = min(kKeys, position + 1 - tile);
    int64_t at[2] = {};
    float s[2] = {-infinity(), -infinity()};
    for (int i = 0; i < 2; ++i)
      if (lane + i * 32 < visible) {
        at[i] = key_offset(tile + lane + i * 32);
        s[i] = dot(f.q + row * e.dim, f.k + at[i], e.dim);
      }
    const float new_top = fmaxf(top, warp_max(fmaxf(s[0], s[1])) * scale_log2);
    const float base = new_top == -infinity() ? 0.0F : new_top;
    const float keep = exp2_fast(top - base);
    top = new_top;
    for (int i = 0; i < 2; ++i) s[i] = exp2_fast(fmaf(s[i], scale_log2, -base));
    sum = fmaf(sum, keep, s[0] + s[1]);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) acc[i] *= keep;
    for (int j = 0; j < visible; ++j) {
      const float p = __shfl_sync(kAllLanes, j < 32 ? s[0] : s[1], j % 32);
      const int64_t from = __shfl_sync(kAllLanes, j < 32 ? at[0] : at[1], j % 32);
      add_weighted(acc, p, f.v + from, e.dim, lane);
    }
  }
  sum = warp_sum(sum);
  store_scaled(f.out + row * e.dim, acc, 1.0F / sum, e.dim, lane);
  if (f.lse != nullptr && lane == 0) f.lse[row] = fmaf(top, kLn2, logf(sum));
}

/// A lane's pair of a query and a key: the weight, and the gradient of the score (without scale).
struct Pair {
  float p = 0, ds = 0;
};
template <class T>
__device__ Pair differentiate(const SimtBackward<T>& f, int64_t row, int64_t key, float delta) {
  const int dim = f.e.dim;
  const float s = dot(f.q + row * dim, f.k + key * dim, dim);
  const float dp = dot(f.dout + row * dim, f.v + key * dim, dim);
  const float p = exp2_fast(fmaf(s, f.e.scale * kLog2E, -f.lse[row] * kLog2E));
  return {p, p * (dp - delta)};
}

template <class T>
__global__ void __launch_bounds__(kThreads) simt_backward_queries(const SimtBackward<T> f) {
  const Extents& e = f.e;
  const int64_t row = warp_index();  // token-major, then heads
  if (row >= e.rows) return;
  const int lane = threadIdx.x % 32;
  const int64_t token = row / e.heads;
  const int kv_head = static_cast<int>(row % e.heads) / e.group;
  const int64_t begin = e.query_begin[find_sequence(e, token)];
  const float delta = dot(f.dout + row * e.dim, f.out + row * e.dim, e.dim);
  float dq[kSlots] = {};
  for (int64_t tile = begin; tile <= token; tile += 32) {
    Pair pair;
    if (tile + lane <= token)
      pair = differentiate(f, row, (tile + lane) * e.kv_heads + kv_head, delta);
    const int visible = static_cast<int>(min(int64_t{32}, token + 1 - tile));
    for (int j = 0; j < visible; ++j)
      add_weighted(dq, __shfl_sync(kAllLanes, pair.ds, j),
                   f.k + ((tile + j) * e.kv_heads + kv_head) * e.dim, e.dim, lane);
  }
  store_scaled(f.dq + row * e.dim, dq, e.scale, e.dim, lane);
}

template <class T>
__global__ void __launch_bounds__(kThreads) simt_backward_keys(const SimtBackward<T> f) {
  const Extents& e = f.e;
  const int64_t key = warp_index();  // token-major, then key heads
  if (key >= e.rows) return;
  const int lane = threadIdx.x % 32;
  const int64_t token = key / e.kv_heads;
  const int kv_head = static_cast<int>(key % e.kv_heads);
  const int64_t count = (e.query_begin[find_sequence(e, token) + 1] - token) * e.group;
  const auto row_of = [&](int64_t i) {  // queries that see the key: (token, head of the group)
    return (token + i / e.group) * e.heads + kv_head * e.group + i % e.group;
  };
  float dk[kSlots] = {}, dv[kSlots] = {};
  for (int64_t first = 0; first < count; first += 32) {
    Pair pair;
    if (first + lane < count) {
      const int64_t row = row_of(first + lane);
      pair = differentiate(f, row, key, dot(f.dout + row * e.dim, f.out + row * e.dim, e.dim));
    }
    const int rows = static_cast<int>(min(int64_t{32}, count - first));
    for (int j = 0; j < rows; ++j) {
      const int64_t row = row_of(first + j);
      add_weighted(dv, __shfl_sync(kAllLanes, pair.p, j), f.dout + row * e.dim, e.dim, lane);
      add_weighted(dk, __shfl_sync(kAllLanes, pair.ds, j), f.q + row * e.dim, e.dim, lane);
    }
  }
  store_scaled(f.dv + key * e.dim, dv, 1, e.dim, lane);
  store_scaled(f.dk + key * e.dim, dk, e.scale, e.dim, lane);
}

struct Heads {
  int64_t tokens, heads, kv_heads, dim;
};
Extents extents(const Tensor& query_begin, const Heads& h, float scale) {
  return {.query_begin = pointer<const int32_t>(query_begin),
          .sequences = static_cast<int>(query_begin.elements() - 1),
          .heads = static_cast<int>(h.heads),
          .kv_heads = static_cast<int>(h.kv_heads),
          .group = static_cast<int>(h.heads / h.kv_heads),
          .dim = static_cast<int>(h.dim),
          .rows = h.tokens * h.heads,
          .scale = scale};
}

}  // namespace

void attention_simt(Exec& exec, const AttentionArgs& a) {
  const Heads h = {a.q.dim(0), a.q.dim(1), a.k_pool.dim(1), a.q.dim(2)};
  with_type(a.q.dtype(), [&](auto type) {
    using T = decltype(type);
    const SimtForward<T> f = {
        .e = extents(a.query_begin, h, a.scale),
        .q = pointer<const T>(a.q),
        .k = pointer<const T>(a.k_pool),
        .v = pointer<const T>(a.v_pool),
        .context = pointer<const int32_t>(a.context),
        .pages = pointer<const int32_t>(a.page_table),
        .kv_begin = pointer<const int32_t>(a.kv_begin),
        .page_size = a.page_size,
        .pages_per_sequence = a.page_table ? static_cast<int>(a.page_table.dim(1)) : 0,
        .out = pointer<T>(a.out),
        .lse = pointer<float>(a.lse),
    };
    simt_forward<T><<<blocks_for(f.e.rows * 32, kThreads), kThreads, 0, stream_of(exec)>>>(f);
    check_launch("attention without tensor cores");
  });
}

void attention_backward_simt(Exec& exec, const AttentionBackwardArgs& a) {
  const Heads h = {a.q.dim(0), a.q.dim(1), a.k.dim(1), a.q.dim(2)};
  with_type(a.q.dtype(), [&](auto type) {
    using T = decltype(type);
    SimtBackward<T> f = {
        .e = extents(a.query_begin, h, a.scale),
        .q = pointer<const T>(a.q),
        .k = pointer<const T>(a.k),
        .v = pointer<const T>(a.v),
        .out = pointer<const T>(a.out),
        .dout = pointer<const T>(a.dout),
        .lse = pointer<const float>(a.lse),
        .dq = pointer<T>(a.dq),
        .dk = pointer<T>(a.dk),
        .dv = pointer<T>(a.dv),
    };
    const auto blocks = [&] { return blocks_for(f.e.rows * 32, kThreads); };
    simt_backward_queries<T><<<blocks(), kThreads, 0, stream_of(exec)>>>(f);
    check_launch("attention_backward of queries without tensor cores");
    f.e.rows = h.tokens * h.kv_heads;
    simt_backward_keys<T><<<blocks(), kThreads, 0, stream_of(exec)>>>(f);
    check_launch("attention_backward of keys without tensor cores");
  });
}

}  // namespace miles::cuda
