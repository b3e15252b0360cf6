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
  const T* x;      // [rows, columns]
  const T* delta;  // [rows, columns] or null
  T* sum;          // [rows, columns], with delta
  const T* w;      // [columns]
  T* y;            // [rows, columns]
  float* rstd;     // [rows] or null
  int64_t rows, columns;
  float eps;
};

/// Eight of x and of delta.
template <class T>
struct Change {
  Raw<T> x, delta;

  /// x, or the sum, written.
  template <bool kWide>
  __device__ Raw<T> made(const Forward<T>& a, int64_t at, int64_t left) const {
    if (a.delta == nullptr) return x;
    Eight u = to_f32(x);
    const Eight d = to_f32(delta);
#pragma unroll
    for (int e = 0; e < 8; ++e) u.at[e] += d.at[e];
    const Raw<T> after = rounded_to<T>(u);
    store_raw<kWide>(a.sum + at, after, left);
    return after;
  }
};

template <class T>
__device__ float add_squares(float sum, const Raw<T>& raw) {
  const Eight u = to_f32(raw);
#pragma unroll
  for (int e = 0; e < 8; ++e) sum = fmaf(u.at[e], u.at[e], sum);
  return sum;
}

template <class T>
__device__ Eight normalised(const Raw<T>& raw, const Raw<T>& weights, float r) {
  Eight u = to_f32(raw);
#pragma unroll
  for (int e = 0; e < 8; ++e) u.at[e] *= r;
  u = rounded<T>(u);
  const Eight w = to_f32(weights);
#pragma unroll
  for (int e = 0; e < 8; ++e) u.at[e] *= w.at[e];
  return u;
}

/// kThreads threads a row: eight number k of a row is thread k mod kThreads's. It keeps the first
/// kHeld of its eights in registers and reads those of longer rows again. All loads that hang on
/// nothing are done first.
template <class T, bool kWide, int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads == 32 ? 32 * kWarpRows : kThreads)
    rms_norm_kernel(const Forward<T> a) {
  wait_for_earlier_kernels();
  __shared__ float scratch[kThreads / 32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // whole warps, and only where no block-wide barrier follows
  constexpr int kStep = 8 * kThreads;
  const int64_t first = int64_t{8} * threadIdx.x, start = row * a.columns;
  Change<T> changes[kHeld];
  Raw<T> weights[kHeld], held[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t i = first + k * kStep, left = a.columns - i;
    changes[k].x = load_raw<kWide>(a.x + start + i, left);
    changes[k].delta = load_raw<kWide>(a.delta + start + i, a.delta != nullptr ? left : 0);
  }
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t i = first + k * kStep;
    weights[k] = load_raw<kWide>(a.w + i, a.columns - i);
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t i = first + k * kStep;
    held[k] = changes[k].template made<kWide>(a, start + i, a.columns - i);
    squares = add_squares(squares, held[k]);
  }
  for (int64_t i = first + kHeld * kStep; i < a.columns; i += kStep) {
    const int64_t at = start + i, left = a.columns - i;
    const Change<T> change = {load_raw<kWide>(a.x + at, left),
                              load_raw<kWide>(a.delta + at, a.delta != nullptr ? left : 0)};
    squares = add_squares(squares, change.template made<kWide>(a, at, left));
  }
  const float sum = row_sum<kThreads>(squares, scratch);
  const float r = 1.0F / sqrtf(sum / static_cast<float>(a.columns) + a.eps);
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t i = first + k * kStep;
    store<kWide>(a.y + start + i, normalised(held[k], weights[k], r), a.columns - i);
  }
  for (int64_t i = first + kHeld * kStep; i < a.columns; i += kStep) {
    const int64_t at = start + i, left = a.columns - i;
    const T* const from = a.delta != nullptr ? a.sum : a.x;
    const Raw<T> u = load_raw<kWide>(from + at, left), w = load_raw<kWide>(a.w + i, left);
    store<kWide>(a.y + at, normalised(u, w, r), left);
  }
  if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[row] = r;
}

/// The number of threads depends on the width alone.
template <bool kWide, class T>
void forward(const Exec& exec, const Forward<T>& a) {
  const char* const op = "rms_norm";
  const auto rows = static_cast<unsigned>(a.rows);
  const int64_t n = eights(a.columns);
  if (n <= 4 * 32)
    launch_chained<rms_norm_kernel<T, kWide, 32, 4>>(
        exec, {blocks_for(a.rows, kWarpRows), dim3(32, kWarpRows)}, op, a);
  else if (n <= 4 * 128)
    launch_chained<rms_norm_kernel<T, kWide, 128, 4>>(exec, {rows, 128}, op, a);
  else if (n <= 4 * 256)
    launch_chained<rms_norm_kernel<T, kWide, 256, 4>>(exec, {rows, 256}, op, a);
  else
    launch_chained<rms_norm_kernel<T, kWide, 1024, 2>>(exec, {rows, 1024}, op, a);
}

template <class T>
struct Backward {
  const T* dy;         // [rows, columns]
  const T* x;          // [rows, columns]
  const T* w;          // [columns]
  const float* rstd;   // [rows]
  const T* dresidual;  // [rows, columns]
  T* dx;               // [rows, columns]; may be dresidual or x
  float* partials;     // [chunks, stride]: dw of each chunk of rows
  int64_t rows, columns;
  int64_t chunk;   // rows of one block
  int64_t stride;  // columns, rounded up to whole eights
  bool in_shared;  // whether a chunk's dw fits there while it is summed
};

/// What eight columns of a row bring to the gradients.
template <class T>
struct RowEight {
  Raw<T> dy, x, w;

  template <bool kWide>
  static __device__ RowEight load(const Backward<T>& a, int64_t row, int64_t i) {
    const int64_t at = row * a.columns + i, left = a.columns - i;
    return {load_raw<kWide>(a.dy + at, left), load_raw<kWide>(a.x + at, left),
            load_raw<kWide>(a.w + i, left)};
  }
};

/// dx of a chunk of rows, and its share of dw: a thread sums its own columns over the rows in
/// order. It keeps the first kHeld of its eights in registers between the two passes over a row,
/// and reads those of longer rows again.
template <class T, bool kWide, int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads / (kThreads == 128 ? 2 : 1))
    rms_norm_backward_kernel(const Backward<T> a) {
  extern __shared__ float4 dynamic[];
  __shared__ float scratch[2][kThreads / 32];  // by turns: one barrier a row is then enough
  constexpr int kStep = 8 * kThreads;
  const int64_t first = int64_t{8} * threadIdx.x;
  float* const partial = a.partials + blockIdx.x * a.stride;
  float* const sums = a.in_shared ? reinterpret_cast<float*>(dynamic) : partial;
  for (int64_t i = first; i < a.columns; i += kStep) store<true>(sums + i, Eight{}, 8);
  const int64_t begin = blockIdx.x * a.chunk, end = min(a.rows, begin + a.chunk);
  for (int64_t row = begin; row < end; ++row) {
    const float r = a.rstd[row];
    RowEight<T> held[kHeld];
    Raw<T> before[kHeld];  // dresidual
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      held[k] = RowEight<T>::template load<kWide>(a, row, first + k * kStep);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int64_t i = first + k * kStep;
      before[k] = load_raw<kWide>(a.dresidual + row * a.columns + i, a.columns - i);
    }
    float dot = 0;
    const auto add_dot = [&](const RowEight<T>& of) {
      const Eight d = to_f32(of.dy), u = to_f32(of.x), w = to_f32(of.w);
#pragma unroll
      for (int e = 0; e < 8; ++e) dot = fmaf(d.at[e] * w.at[e], u.at[e] * r, dot);
    };
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      if (first + k * kStep < a.columns) add_dot(held[k]);
#pragma unroll 2
    for (int64_t i = first + kHeld * kStep; i < a.columns; i += kStep)
      add_dot(RowEight<T>::template load<kWide>(a, row, i));
    const float mean = block_sum<kThreads>(dot, scratch[row & 1]) / static_cast<float>(a.columns);
    const auto add_gradients = [&](const RowEight<T>& of, const Raw<T>& dresidual, int64_t i) {
      const Eight d = to_f32(of.dy), w = to_f32(of.w);
      Eight to = to_f32(dresidual), dw = to_f32(load_raw<true>(sums + i, 8)), x = to_f32(of.x);
#pragma unroll
      for (int e = 0; e < 8; ++e) x.at[e] *= r;
      const Eight seen = rounded<T>(x);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        to.at[e] += (d.at[e] * w.at[e] - x.at[e] * mean) * r;
        dw.at[e] = fmaf(d.at[e], seen.at[e], dw.at[e]);
      }
      store<kWide>(a.dx + row * a.columns + i, to, a.columns - i);
      store<true>(sums + i, dw, 8);
    };
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int64_t i = first + k * kStep;
      if (i < a.columns) add_gradients(held[k], before[k], i);
    }
#pragma unroll 2
    for (int64_t i = first + kHeld * kStep; i < a.columns; i += kStep) {
      const Raw<T> dresidual = load_raw<kWide>(a.dresidual + row * a.columns + i, a.columns - i);
      add_gradients(RowEight<T>::template load<kWide>(a, row, i), dresidual, i);
    }
  }
  if (!a.in_shared) return;
  for (int64_t i = first; i < a.columns; i += kStep)
    store_raw<true>(partial + i, load_raw<true>(sums + i, 8), 8);
}

template <bool kWide, class T>
void backward(const Exec& exec, Backward<T> a, float* dw) {
  constexpr int64_t kSharedBytes = 40 << 10;  // any device has that without asking
  a.stride = 8 * eights(a.columns);
  a.partials = reinterpret_cast<float*>(exec.workspace.data());
  const RowChunks chunks = row_chunks({a.rows, a.stride});
  a.chunk = chunks.size;
  const int64_t bytes = a.stride * static_cast<int64_t>(sizeof(float));
  a.in_shared = bytes <= kSharedBytes;
  const size_t shared = a.in_shared ? static_cast<size_t>(bytes) : 0;
  const auto blocks = static_cast<unsigned>(chunks.count);
  if (eights(a.columns) <= 4 * 128)
    rms_norm_backward_kernel<T, kWide, 128, 4><<<blocks, 128, shared, stream_of(exec)>>>(a);
  else
    rms_norm_backward_kernel<T, kWide, 512, 2><<<blocks, 512, shared, stream_of(exec)>>>(a);
  check_launch("rms_norm_backward");
  add_column_sums(exec, {a.partials, chunks.count, a.stride, a.columns}, dw);
}

}  // namespace

void rms_norm(Exec& exec, const RmsNormArgs& args) {
  const int64_t rows = args.x.dim(0), columns = args.x.dim(1);
  if (rows == 0 || columns == 0) return;
  with_type(args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Forward<T> a = {.x = pointer<T>(args.x),
                          .delta = pointer<T>(args.delta),
                          .sum = pointer<T>(args.sum ? args.sum : args.x),
                          .w = pointer<T>(args.w),
                          .y = pointer<T>(args.y),
                          .rstd = pointer<float>(args.rstd),
                          .rows = rows,
                          .columns = columns,
                          .eps = args.eps};
    with_width(is_wide(columns, a.x, a.delta, a.sum, a.w, a.y),
               [&](auto wide) { forward<wide()>(exec, a); });
  });
}

void rms_norm_backward(Exec& exec, const RmsNormBackwardArgs& args) {
  const int64_t rows = args.x.dim(0), columns = args.x.dim(1);
  if (rows == 0 || columns == 0) return;
  with_type(args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const Backward<T> a = {.dy = pointer<T>(args.dy),
                           .x = pointer<T>(args.x),
                           .w = pointer<T>(args.w),
                           .rstd = pointer<float>(args.rstd),
                           .dresidual = pointer<T>(args.dresidual ? args.dresidual : args.dx),
                           .dx = pointer<T>(args.dx),
                           .partials = nullptr,
                           .rows = rows,
                           .columns = columns,
                           .chunk = 0,
                           .stride = 0,
                           .in_shared = false};
    with_width(is_wide(columns, a.dy, a.x, a.w, a.dresidual, a.dx),
               [&](auto wide) { backward<wide()>(exec, a, pointer<float>(args.dw)); });
  });
}

}  // namespace miles::cuda
