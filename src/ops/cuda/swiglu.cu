#include "ops/cuda/backend.h"
#include "ops/cuda/chained_launch.cuh"
#include "ops/cuda/eight.cuh"
#include "ops/swiglu.h"

namespace miles::cuda {
namespace {

constexpr int kThreads = 128;

__device__ inline float sigmoid(float a) {
  return 1.0F / (1.0F + expf(-a));
}

/// Where a thread's eight columns lie. Blocks run along the columns of one row after the other.
struct Columns {
  int64_t rows, columns;
  unsigned blocks;  // of a row

  __device__ int64_t row() const { return blockIdx.x / blocks; }
  __device__ int64_t first() const {
    return int64_t{8} * (blockIdx.x % blocks * kThreads + threadIdx.x);
  }
};

template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const Columns at, const T* gate_up, T* y) {
  wait_for_earlier_kernels();
  const int64_t row = at.row(), i = at.first(), left = at.columns - i;
  if (left <= 0) return;
  const T* const gate = gate_up + row * 2 * at.columns + i;
  const Raw<T> gates = load_raw<kWide>(gate, left), ups = load_raw<kWide>(gate + at.columns, left);
  const Eight g = to_f32(gates), u = to_f32(ups);
  Eight result;
#pragma unroll
  for (int e = 0; e < 8; ++e) result.at[e] = rounded<T>(g.at[e] * sigmoid(g.at[e])) * u.at[e];
  store<kWide>(y + row * at.columns + i, result, left);
}

/// A thread reads all it needs before it writes: dgate_up may be gate_up, and y dy.
template <class T, bool kWide>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(const Columns at, const T* dy, const T* gate_up, T* dgate_up, T* y) {
  const int64_t row = at.row(), i = at.first(), left = at.columns - i;
  if (left <= 0) return;
  const int64_t gate = row * 2 * at.columns + i, up = gate + at.columns;
  const Raw<T> gates = load_raw<kWide>(gate_up + gate, left);
  const Raw<T> ups = load_raw<kWide>(gate_up + up, left);
  const Raw<T> dys = load_raw<kWide>(dy + row * at.columns + i, left);
  const Eight g = to_f32(gates), u = to_f32(ups), d = to_f32(dys);
  Eight d_gate, d_up, result;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float s = sigmoid(g.at[e]);
    d_gate.at[e] = d.at[e] * u.at[e] * (s * (1.0F + g.at[e] * (1.0F - s)));
    const float silu = rounded<T>(g.at[e] * s);
    d_up.at[e] = d.at[e] * silu;
    result.at[e] = silu * u.at[e];
  }
  store<kWide>(dgate_up + gate, d_gate, left);
  store<kWide>(dgate_up + up, d_up, left);
  store<kWide>(y + row * at.columns + i, result, left);
}

Columns columns_of(const Tensor& y) {
  const int64_t columns = y.dim(1);
  return {y.dim(0), columns, blocks_for(eights(columns), kThreads)};
}

}  // namespace

void swiglu(Exec& exec, const SwigluArgs& args) {
  if (args.y.elements() == 0) return;
  with_type(args.y.dtype(), [&](auto type) {
    using T = decltype(type);
    T *const gate_up = pointer<T>(args.gate_up), *const y = pointer<T>(args.y);
    const Columns at = columns_of(args.y);
    with_width(is_wide(at.columns, gate_up, y), [&](auto wide) {
      launch_chained<swiglu_kernel<T, wide()>>(exec, {blocks_for(at.rows * at.blocks, 1), kThreads},
                                               "swiglu", at, gate_up, y);
    });
  });
}

void swiglu_backward(Exec& exec, const SwigluBackwardArgs& args) {
  if (args.dy.elements() == 0) return;
  with_type(args.dy.dtype(), [&](auto type) {
    using T = decltype(type);
    T *const dy = pointer<T>(args.dy), *const gate_up = pointer<T>(args.gate_up);
    T *const dgate_up = pointer<T>(args.dgate_up), *const y = pointer<T>(args.y);
    const Columns at = columns_of(args.dy);
    with_width(is_wide(at.columns, dy, gate_up, dgate_up, y), [&](auto wide) {
      swiglu_backward_kernel<T, wide()>
          <<<blocks_for(at.rows * at.blocks, 1), kThreads, 0, stream_of(exec)>>>(at, dy, gate_up,
                                                                                 dgate_up, y);
    });
    check_launch("swiglu_backward");
  });
}

}  // namespace miles::cuda
