#include "ops/adamw.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/eight.cuh"

namespace miles::cuda {
namespace {

constexpr int kThreads = 256;

using Step = AdamWStep<float>;

/// A parameter with what the optimizer knows of it.
struct State {
  float master, m, v;
};
__device__ inline State updated(const Step& s, const State& state, float grad) {
  const float g = grad * s.grad_scale;
  const float m = fmaf(s.beta1, state.m, s.rest1 * g);
  const float v = fmaf(s.beta2, state.v, s.rest2 * (g * g));
  const float direction = (m / s.correction1) / (sqrtf(v / s.correction2) + s.eps);
  const float decayed = fmaf(s.weight_decay, state.master, direction);
  return {fmaf(s.negative_lr, decayed, state.master), m, v};
}

/// Eight u16 values, as they lie in memory.
struct alignas(16) EightHalves {
  uint16_t at[8];
};
__device__ inline EightHalves load_halves(const uint16_t* p, int64_t left, bool wide) {
  if (wide) {
    const uint4 words = *reinterpret_cast<const uint4*>(p);
    return *reinterpret_cast<const EightHalves*>(&words);
  }
  EightHalves x;
#pragma unroll
  for (int i = 0; i < 8; ++i) x.at[i] = i < left ? p[i] : uint16_t{0};
  return x;
}
__device__ inline void store_halves(uint16_t* p, const EightHalves& x, int64_t left, bool wide) {
  if (wide) {
    *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(&x);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < left) p[i] = x.at[i];
}

/// split_master and join_master of ops/adamw.cpp.
__device__ inline float joined(uint16_t high, uint16_t low) {
  const uint32_t extended = (uint32_t{low} ^ 0x8000U) - 0x8000U;  // an int16's sign, spread
  return __uint_as_float((uint32_t{high} << 16) + extended);
}
__device__ inline void split(float master, uint16_t& high, uint16_t& low) {
  const uint32_t bits = __float_as_uint(master);
  const uint32_t nearest = (bits + 0x8000U) >> 16;
  const bool number = master == master;
  high = static_cast<uint16_t>(number ? nearest : (bits >> 16) | 0x40U);
  low = static_cast<uint16_t>(number ? bits - (nearest << 16) : 0);
}

/// A run of parameters. T is the parameters' and the gradients' type.
template <class T>
struct Run {
  T* param;
  uint16_t* low;  // null with f32 parameters
  float *m, *v;
  const T* grad;
  int64_t n;
  bool wide;  // but for the last, partial eight
};

__device__ inline Eight load_masters(const Run<float>& run, int64_t i, int64_t left, bool wide) {
  return load(run.param + i, left, wide);
}
__device__ inline Eight load_masters(const Run<bf16>& run, int64_t i, int64_t left, bool wide) {
  const auto* const param = reinterpret_cast<const uint16_t*>(run.param);
  const EightHalves high = load_halves(param + i, left, wide);
  const EightHalves low = load_halves(run.low + i, left, wide);
  Eight masters;
#pragma unroll
  for (int e = 0; e < 8; ++e) masters.at[e] = joined(high.at[e], low.at[e]);
  return masters;
}
__device__ inline void store_masters(const Run<float>& run, int64_t i, const Eight& masters,
                                     int64_t left, bool wide) {
  store(run.param + i, masters, left, wide);
}
__device__ inline void store_masters(const Run<bf16>& run, int64_t i, const Eight& masters,
                                     int64_t left, bool wide) {
  EightHalves high, low;
#pragma unroll
  for (int e = 0; e < 8; ++e) split(masters.at[e], high.at[e], low.at[e]);
  store_halves(reinterpret_cast<uint16_t*>(run.param) + i, high, left, wide);
  store_halves(run.low + i, low, left, wide);
}

template <class T>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const Run<T> run, const Step step) {
  const int64_t i = 8 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  const int64_t left = run.n - i;
  if (left <= 0) return;
  const bool wide = run.wide && left >= 8;
  const auto grad_i = fetch(run.grad + i, left, wide);
  Eight m = load(run.m + i, left, wide), v = load(run.v + i, left, wide);
  Eight masters = load_masters(run, i, left, wide);
  const Eight grad = widened(grad_i);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const State after = updated(step, {masters.at[e], m.at[e], v.at[e]}, grad.at[e]);
    masters.at[e] = after.master;
    m.at[e] = after.m;
    v.at[e] = after.v;
  }
  store_masters(run, i, masters, left, wide);
  store(run.m + i, m, left, wide);
  store(run.v + i, v, left, wide);
}

}  // namespace

void adamw(Exec& exec, const AdamWArgs& args) {
  const int64_t n = args.param.elements();
  if (n == 0) return;
  with_type(args.param.dtype(), [&](auto type) {
    using T = decltype(type);
    Run<T> run = {.param = pointer<T>(args.param),
                  .low = pointer<uint16_t>(args.low),
                  .m = pointer<float>(args.m),
                  .v = pointer<float>(args.v),
                  .grad = pointer<T>(args.grad),
                  .n = n,
                  .wide = false};
    run.wide = is_aligned(run.param, run.low, run.m, run.v, run.grad);
    adamw_kernel<T>
        <<<blocks_for(n, 8 * kThreads), kThreads, 0, stream_of(exec)>>>(run, adamw_step(args));
    check_launch("adamw");
  });
}

}  // namespace miles::cuda
