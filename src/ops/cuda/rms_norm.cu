#include "ops/cuda/backend.h"
#include "ops/cuda/chained_launch.cuh"
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/eight.cuh"
#include "ops/rms_norm.h"

namespace miles::cuda {
namespace {

/// Narrow rows get a warp each, this many to a block.
constexpr int kWarpRows = 4;

/// Over the kThreads threads of a row.
template <int kThreads>
__device__ float row_sum(float x, float* shared) {
  if constexpr (kThreads == 32)
    return warp_sum(x);
  else
    return block_sum<kThreads>(x, shared);
}

template <class T>
struct Forward {
  T* x;            // [rows, columns]
  const T* delta;  // [rows, columns] or null
  const T* w;      // [columns]
  T* y;            // [rows, columns]
  float* rstd;     // [rows] or null
  int64_t rows, columns;
  float eps;
  bool wide;

  /// Eight of x, with delta added and written back.
  __device__ Fetched<T> updated(int64_t row, int64_t i, const Fetched<T>& before,
                                const Fetched<T>& change) const {
    if (delta == nullptr) return before;
    Eight u = widened(before);
    const Eight v = widened(change);
#pragma unroll
    for (int e = 0; e < 8; ++e) u.at[e] = rounded<T>(u.at[e] + v.at[e]);
    store(x + row * columns + i, u, columns - i, wide);
    return narrowed<T>(u);
  }
  __device__ void write(int64_t row, int64_t i, const Eight& u, const Eight& weight,
                        float r) const {
    Eight result;
#pragma unroll
    for (int e = 0; e < 8; ++e) result.at[e] = rounded<T>(u.at[e] * r) * weight.at[e];
    store(y + row * columns + i, result, columns - i, wide);
  }
};

__device__ inline float add_squares(float sum, const Eight& u) {
#pragma unroll
  for (int e = 0; e < 8; ++e) sum = fmaf(u.at[e], u.at[e], sum);
  return sum;
}

/// kThreads threads a row: eight number k of a row is thread k mod kThreads's. It keeps the first
/// kHeld of its eights in registers and reads those of longer rows again.
template <class T, int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads == 32 ? 32 * kWarpRows : kThreads)
    rms_norm_kernel(const Forward<T> a) {
  wait_for_earlier_kernels();
  __shared__ float scratch[kThreads / 32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // whole warps, and only where no block-wide barrier follows
  const int64_t first = int64_t{8} * threadIdx.x, step = 8 * kThreads;
  const T* const x = a.x + row * a.columns;
  const T* const delta = a.delta + (a.delta != nullptr ? row * a.columns : 0);
  Fetched<T> held[kHeld] = {}, change[kHeld] = {}, weights[kHeld] = {};
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t i = first + k * step;
    if (i >= a.columns) continue;
    held[k] = fetch(x + i, a.columns - i, a.wide);
    if (a.delta != nullptr) change[k] = fetch(delta + i, a.columns - i, a.wide);
    weights[k] = fetch(a.w + i, a.columns - i, a.wide);
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t i = first + k * step;
    if (i >= a.columns) continue;
    held[k] = a.updated(row, i, held[k], change[k]);
    squares = add_squares(squares, widened(held[k]));
  }
  for (int64_t i = first + kHeld * step; i < a.columns; i += step) {
    const Fetched<T> before = fetch(x + i, a.columns - i, a.wide);
    Fetched<T> more = {};
    if (a.delta != nullptr) more = fetch(delta + i, a.columns - i, a.wide);
    squares = add_squares(squares, widened(a.updated(row, i, before, more)));
  }
  const float sum = row_sum<kThreads>(squares, scratch);
  const float r = 1.0F / sqrtf(sum / static_cast<float>(a.columns) + a.eps);
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t i = first + k * step;
    if (i < a.columns) a.write(row, i, widened(held[k]), widened(weights[k]), r);
  }
  for (int64_t i = first + kHeld * step; i < a.columns; i += step)
    a.write(row, i, load(x + i, a.columns - i, a.wide), load(a.w + i, a.columns - i, a.wide), r);
  if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[row] = r;
}

/// The number of threads depends on the width alone.
template <class T>
void forward(const Exec& exec, const Forward<T>& a) {
  const char* op = "rms_norm";
  const auto rows = static_cast<unsigned>(a.rows);
  const int64_t n = eights(a.columns);
  if (n <= 4 * 32)
    launch_chained<rms_norm_kernel<T, 32, 4>>(
        exec, {blocks_for(a.rows, kWarpRows), dim3(32, kWarpRows)}, op, a);
  else if (n <= 4 * 128)
    launch_chained<rms_norm_kernel<T, 128, 4>>(exec, {rows, 128}, op, a);
  else if (n <= 4 * 256)
    launch_chained<rms_norm_kernel<T, 256, 4>>(exec, {rows, 256}, op, a);
  else
    launch_chained<rms_norm_kernel<T, 1024, 2>>(exec, {rows, 1024}, op, a);
}

template <class T>
struct Backward {
  const T* dy;        // [rows, columns]
  const T* x;         // [rows, columns]
  const T* w;         // [columns]
  const float* rstd;  // [rows]
  T* dx;              // [rows, columns]
  float* partials;    // [chunks, stride]: dw of each chunk of rows
  int64_t rows, columns;
  int64_t chunk;   // rows of one block
  int64_t stride;  // columns, rounded up to whole eights
  bool wide;
  bool in_shared;  // whether a chunk's dw fits there while it is summed
};

/// dx of a chunk of rows, and its share of dw: a thread sums its own columns over the rows in
/// order.
template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads) rms_norm_backward_kernel(const Backward<T> a) {
  extern __shared__ float4 dynamic[];
  __shared__ float scratch[2][kThreads / 32];  // by turns: one barrier a row is then enough
  const int64_t first = int64_t{8} * threadIdx.x, step = 8 * kThreads;
  float* const partial = a.partials + blockIdx.x * a.stride;
  float* const sums = a.in_shared ? reinterpret_cast<float*>(dynamic) : partial;
  for (int64_t i = first; i < a.columns; i += step) store_wide(sums + i, Eight{});
  const int64_t begin = blockIdx.x * a.chunk, end = min(a.rows, begin + a.chunk);
  for (int64_t row = begin; row < end; ++row) {
    const T* const dy = a.dy + row * a.columns;
    const T* const x = a.x + row * a.columns;
    T* const dx = a.dx + row * a.columns;
    const float r = a.rstd[row];
    float dot = 0;
#pragma unroll 4
    for (int64_t i = first; i < a.columns; i += step) {
      const int64_t left = a.columns - i;
      const auto dy_i = fetch(dy + i, left, a.wide), x_i = fetch(x + i, left, a.wide);
      const auto w_i = fetch(a.w + i, left, a.wide);
      const Eight d = widened(dy_i), u = widened(x_i), w = widened(w_i);
#pragma unroll
      for (int e = 0; e < 8; ++e) dot = fmaf(d.at[e] * w.at[e], u.at[e] * r, dot);
    }
    const float mean = block_sum<kThreads>(dot, scratch[row & 1]) / static_cast<float>(a.columns);
#pragma unroll 2
    for (int64_t i = first; i < a.columns; i += step) {
      const int64_t left = a.columns - i;
      const auto dy_i = fetch(dy + i, left, a.wide), x_i = fetch(x + i, left, a.wide);
      const auto w_i = fetch(a.w + i, left, a.wide), dx_i = fetch(dx + i, left, a.wide);
      const Eight d = widened(dy_i), u = widened(x_i), w = widened(w_i);
      Eight to = widened(dx_i), dw = load_wide(sums + i);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float normalised = u.at[e] * r;
        to.at[e] += (d.at[e] * w.at[e] - normalised * mean) * r;
        dw.at[e] = fmaf(d.at[e], rounded<T>(normalised), dw.at[e]);
      }
      store(dx + i, to, left, a.wide);
      store_wide(sums + i, dw);
    }
  }
  if (!a.in_shared) return;
  for (int64_t i = first; i < a.columns; i += step) store_wide(partial + i, load_wide(sums + i));
}

template <class T>
void backward(const Exec& exec, Backward<T> a, float* dw) {
  constexpr int64_t kSharedBytes = 40 << 10;  // any device has that without asking
  a.stride = 8 * eights(a.columns);
  a.partials = reinterpret_cast<float*>(exec.workspace.data());
  const RowChunks chunks = row_chunks(exec, {a.rows, a.stride});
  a.chunk = chunks.size;
  const int64_t bytes = a.stride * static_cast<int64_t>(sizeof(float));
  a.in_shared = bytes <= kSharedBytes;
  const size_t shared = a.in_shared ? static_cast<size_t>(bytes) : 0;
  const auto blocks = static_cast<unsigned>(chunks.count);
  if (eights(a.columns) <= 4 * 128)
    rms_norm_backward_kernel<T, 128><<<blocks, 128, shared, stream_of(exec)>>>(a);
  else
    rms_norm_backward_kernel<T, 512><<<blocks, 512, shared, stream_of(exec)>>>(a);
  check_launch("rms_norm_backward");
  add_column_sums(exec, {a.partials, chunks.count, a.stride, a.columns}, dw);
}

}  // namespace

void rms_norm(Exec& exec, const RmsNormArgs& args) {
  const int64_t rows = args.x.dim(0), columns = args.x.dim(1);
  if (rows == 0 || columns == 0) return;
  with_type(args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    Forward<T> a = {.x = pointer<T>(args.x),
                    .delta = pointer<T>(args.delta),
                    .w = pointer<T>(args.w),
                    .y = pointer<T>(args.y),
                    .rstd = pointer<float>(args.rstd),
                    .rows = rows,
                    .columns = columns,
                    .eps = args.eps,
                    .wide = false};
    a.wide = is_wide(columns, a.x, a.delta, a.w, a.y);
    forward(exec, a);
  });
}

void rms_norm_backward(Exec& exec, const RmsNormBackwardArgs& args) {
  const int64_t rows = args.x.dim(0), columns = args.x.dim(1);
  if (rows == 0 || columns == 0) return;
  with_type(args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    Backward<T> a = {.dy = pointer<T>(args.dy),
                     .x = pointer<T>(args.x),
                     .w = pointer<T>(args.w),
                     .rstd = pointer<float>(args.rstd),
                     .dx = pointer<T>(args.dx),
                     .partials = nullptr,
                     .rows = rows,
                     .columns = columns,
                     .chunk = 0,
                     .stride = 0,
                     .wide = false,
                     .in_shared = false};
    a.wide = is_wide(columns, a.dy, a.x, a.w, a.dx);
    backward(exec, a, pointer<float>(args.dw));
  });
}

}  // namespace miles::cuda
