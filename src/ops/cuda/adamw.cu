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
  bf16* low;  // int16 values; null with f32 parameters
  float *m, *v;
  const T* grad;
  int64_t n;
  bool wide;  // but for the last, partial eight
};

/// Eight parameters as they lie in memory: f32, or the two halves of the masters.
template <class T>
struct Masters;
template <>
struct Masters<float> {
  Raw<float> param;

  template <bool kWide>
  static __device__ Masters load(const Run<float>& run, int64_t i, int64_t left) {
    return {load_raw<kWide>(run.param + i, left)};
  }
  template <bool kWide>
  __device__ void store(const Run<float>& run, int64_t i, int64_t left) const {
    store_raw<kWide>(run.param + i, param, left);
  }
  __device__ Eight values() const { return to_f32(param); }
  static __device__ Masters of(const Eight& values) { return {rounded_to<float>(values)}; }
};
template <>
struct Masters<bf16> {
  Raw<bf16> high, low;  // low: int16 values

  template <bool kWide>
  static __device__ Masters load(const Run<bf16>& run, int64_t i, int64_t left) {
    return {load_raw<kWide>(run.param + i, left), load_raw<kWide>(run.low + i, left)};
  }
  template <bool kWide>
  __device__ void store(const Run<bf16>& run, int64_t i, int64_t left) const {
    store_raw<kWide>(run.param + i, high, left);
    store_raw<kWide>(run.low + i, low, left);
  }
  __device__ Eight values() const {
    Eight masters;
#pragma unroll
    for (int e = 0; e < 8; ++e) masters.at[e] = joined(half(high, e), half(low, e));
    return masters;
  }
  static __device__ Masters of(const Eight& values) {
    uint16_t highs[8], lows[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) split(values.at[e], highs[e], lows[e]);
    return {packed(highs), packed(lows)};
  }

 private:
  static __device__ uint16_t half(const Raw<bf16>& raw, int e) {
    const uint4& words = raw.words[0];
    const uint32_t word = e < 2 ? words.x : e < 4 ? words.y : e < 6 ? words.z : words.w;
    return static_cast<uint16_t>(word >> (e % 2 * 16));
  }
  static __device__ Raw<bf16> packed(const uint16_t (&halves)[8]) {
    const auto word = [&](int i) { return halves[2 * i] | uint32_t{halves[2 * i + 1]} << 16; };
    return {{make_uint4(word(0), word(1), word(2), word(3))}};
  }
};

template <bool kWide, class T>
__device__ void step_eight(const Run<T>& run, const Step& step, int64_t i, int64_t left) {
  const auto raw_masters = Masters<T>::template load<kWide>(run, i, left);
  const Raw<float> raw_m = load_raw<kWide>(run.m + i, left),
                   raw_v = load_raw<kWide>(run.v + i, left);
  const Raw<T> raw_grad = load_raw<kWide>(run.grad + i, left);
  Eight masters = raw_masters.values(), m = to_f32(raw_m), v = to_f32(raw_v);
  const Eight grad = to_f32(raw_grad);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const State after = updated(step, {masters.at[e], m.at[e], v.at[e]}, grad.at[e]);
    masters.at[e] = after.master;
    m.at[e] = after.m;
    v.at[e] = after.v;
  }
  Masters<T>::of(masters).template store<kWide>(run, i, left);
  store<kWide>(run.m + i, m, left);
  store<kWide>(run.v + i, v, left);
}

template <class T>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const Run<T> run, const Step step) {
  const int64_t i = 8 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  const int64_t left = run.n - i;
  if (left <= 0) return;
  if (run.wide && left >= 8)
    step_eight<true>(run, step, i, left);
  else
    step_eight<false>(run, step, i, left);
}

}  // namespace

void adamw(Exec& exec, const AdamWArgs& args) {
  const int64_t n = args.param.elements();
  if (n == 0) return;
  with_type(args.param.dtype(), [&](auto type) {
    using T = decltype(type);
    Run<T> run = {.param = pointer<T>(args.param),
                  .low = pointer<bf16>(args.low),
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
