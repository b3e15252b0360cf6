#include "ops/adamw.h"

#include "ops/cpu/row_loops.h"

namespace miles::MILES_ISA {
namespace {

constexpr int64_t kBlock = 4096;  // parameters that one task updates

using Step = AdamWStep<Vec>;

Step splat_all(const AdamWStep<float>& s) {
  return {.grad_scale = splat(s.grad_scale),
          .beta1 = splat(s.beta1),
          .beta2 = splat(s.beta2),
          .rest1 = splat(s.rest1),
          .rest2 = splat(s.rest2),
          .correction1 = splat(s.correction1),
          .correction2 = splat(s.correction2),
          .eps = splat(s.eps),
          .weight_decay = splat(s.weight_decay),
          .negative_lr = splat(s.negative_lr)};
}

/// A vector of parameters with what the optimizer knows of them.
struct State {
  Vec master, m, v;
};
MILES_INLINE State updated(const Step& s, State state, Vec grad) {
  const Vec g = grad * s.grad_scale;
  const Vec m = madd(s.beta1, state.m, s.rest1 * g);
  const Vec v = madd(s.beta2, state.v, s.rest2 * (g * g));
  const Vec direction = (m / s.correction1) / (vsqrt(v / s.correction2) + s.eps);
  const Vec decayed = madd(s.weight_decay, state.master, direction);
  return {madd(s.negative_lr, decayed, state.master), m, v};
}

MILES_INLINE VecH load_half(const uint16_t* p, int count) {
  VecH x = {};
  if (count == kWidth) {
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  for (int i = 0; i < count; ++i) x[i] = p[i];
  return x;
}
MILES_INLINE void store_half(uint16_t* p, VecH x, int count) {
  if (count == kWidth) {
    __builtin_memcpy(p, &x, sizeof x);
    return;
  }
  for (int i = 0; i < count; ++i) p[i] = x[i];
}

/// split_master and join_master of ops/adamw.cpp, on vectors.
struct Split {
  VecH high, low;
};
MILES_INLINE Vec joined(Split split) {
  const VecU low = widened(split.low);
  const VecU extended = (low ^ 0x8000U) - 0x8000U;  // an int16's sign, spread
  return bits_as<Vec>((widened(split.high) << 16) + extended);
}
MILES_INLINE Split split(Vec master) {
  const VecU bits = bits_as<VecU>(master);
  const VecU rounded_high = (bits + 0x8000U) >> 16;
  const VecU high = master != master ? ((bits >> 16) | 0x40U) : rounded_high;
  const VecU low = master != master ? VecU{} : (bits - (rounded_high << 16)) & 0xFFFFU;
  return {narrowed(high), narrowed(low)};
}

/// Some of the parameters.
struct Run {
  int64_t begin, n;
};

void update_f32(const AdamWArgs& a, const Step& step, Run run) {
  const int64_t begin = run.begin;
  float* const param = elements<float>(a.param) + begin;
  float* const m = elements<float>(a.m) + begin;
  float* const v = elements<float>(a.v) + begin;
  const float* const grad = elements<float>(a.grad) + begin;
  for_each_vec(run.n, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    const State before = {load(param + i, count), load(m + i, count), load(v + i, count)};
    const State after = updated(step, before, load(grad + i, count));
    store(param + i, after.master, count);
    store(m + i, after.m, count);
    store(v + i, after.v, count);
  });
}

void update_bf16(const AdamWArgs& a, const Step& step, Run run) {
  const int64_t begin = run.begin;
  uint16_t* const high = elements<uint16_t>(a.param) + begin;  // a BFloat16's bits
  uint16_t* const low = elements<uint16_t>(a.low) + begin;
  float* const m = elements<float>(a.m) + begin;
  float* const v = elements<float>(a.v) + begin;
  const BFloat16* const grad = elements<BFloat16>(a.grad) + begin;
  for_each_vec(run.n, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    const Vec master = joined({load_half(high + i, count), load_half(low + i, count)});
    const State before = {master, load(m + i, count), load(v + i, count)};
    const State after = updated(step, before, load(grad + i, count));
    const Split halves = split(after.master);
    store_half(high + i, halves.high, count);
    store_half(low + i, halves.low, count);
    store(m + i, after.m, count);
    store(v + i, after.v, count);
  });
}

}  // namespace

void adamw(Exec&, const AdamWArgs& args) {
  const int64_t n = args.param.elements();
  const bool narrow = args.param.dtype() == DType::bf16;
  const Step step = splat_all(adamw_step(args));
#pragma omp parallel for schedule(static) if (n > 2 * kBlock)
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const Run run = {begin, smaller(kBlock, n - begin)};
    narrow ? update_bf16(args, step, run) : update_f32(args, step, run);
  }
}

}  // namespace miles::MILES_ISA
