#include <cmath>

#include "ops/cuda/backend.h"
#include "ops/cuda/chained_launch.cuh"
#include "ops/cuda/eight.cuh"
#include "ops/log_prob.h"

namespace miles::cuda {
namespace {

constexpr int kThreads = 512;  // of a row
constexpr int kAhead = 2;      // eights that a thread reads before it uses them
constexpr float kLowest = -INFINITY;

/// Softmax sums of some of a row's z, relative to their largest: Milakov & Gimelshein 2018.
struct Sums {
  float max;       // NaNs aside; −∞ when there is none, and then nothing is shifted
  float exp;       // Σ e^(z − max)
  float weighted;  // Σ e^(z − max)·(z − max)

  /// The same, relative to a max that is larger.
  __device__ void raise(float to) {
    const float change = max == kLowest ? 0.0F : max - to, factor = expf(change);
    weighted = factor * (weighted + exp * change);
    exp = factor * exp;
    max = to;
  }
  __device__ void add(const Eight (&z)[kAhead]) {
    float largest = max;
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
#pragma unroll
      for (int e = 0; e < 8; ++e) largest = fmaxf(largest, z[k].at[e]);
    if (largest > max) raise(largest);
    const float shift = max == kLowest ? 0.0F : max;
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float shifted = z[k].at[e] - shift, p = expf(shifted);
        exp += p;
        weighted += p == 0.0F ? 0.0F : p * shifted;  // 0·(−∞) is 0 here
      }
  }
};

struct Forward {
  const float* logits;  // [rows, vocab]
  const int32_t* targets;
  const float* inverse_temperature;
  float *log_prob, *lse, *entropy;  // [rows]; the last two or null
  int64_t vocab;
};

/// A block per row: eight number k is thread k mod kThreads's, whatever the other rows are.
template <bool kWide>
__global__ void __launch_bounds__(kThreads) log_prob_kernel(const Forward f) {
  wait_for_earlier_kernels();
  __shared__ float scratch[3][kThreads / 32];
  const int64_t row = blockIdx.x;
  const float* const logits = f.logits + row * f.vocab;
  const float scale = f.inverse_temperature[row];
  Sums sums = {kLowest, 0, 0};
  for (int64_t i = int64_t{8} * threadIdx.x; i < f.vocab; i += 8 * kThreads * kAhead) {
    Eight z[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t at = i + 8 * kThreads * k;
      z[k] = load<kWide>(logits + at, f.vocab - at, kLowest);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (i + 8 * kThreads * k + e < f.vocab) z[k].at[e] *= scale;
    sums.add(z);
  }
  const float max = block_max<kThreads>(sums.max, scratch[0]);
  sums.raise(max);
  const float exp = block_sum<kThreads>(sums.exp, scratch[1]);
  const float weighted = block_sum<kThreads>(sums.weighted, scratch[2]);
  if (threadIdx.x != 0) return;
  const float shift = max == kLowest ? 0.0F : max, log_sum = logf(exp);
  const int32_t target = f.targets[row];
  const bool there = target >= 0 && target < f.vocab;
  f.log_prob[row] = there ? logits[target] * scale - shift - log_sum : NAN;
  if (f.lse != nullptr) f.lse[row] = shift + log_sum;
  if (f.entropy != nullptr) f.entropy[row] = log_sum - weighted / exp;
}

constexpr int kBackwardThreads = 256;

template <class T>
struct Backward {
  const float* logits;  // [rows, vocab]
  const int32_t* targets;
  const float *inverse_temperature, *lse, *entropy, *d_log_prob, *d_entropy;  // [rows]
  T* dlogits;  // [rows, vocab]; may be logits
  int64_t vocab;
  unsigned blocks;  // of a row
};

/// A thread reads all it needs of the logits before it writes.
template <class T, bool kWide>
__global__ void __launch_bounds__(kBackwardThreads) log_prob_backward_kernel(const Backward<T> g) {
  const int64_t row = blockIdx.x / g.blocks;
  const int64_t i = int64_t{8} * (blockIdx.x % g.blocks * kBackwardThreads + threadIdx.x);
  const int64_t left = g.vocab - i;
  if (left <= 0) return;
  const float scale = g.inverse_temperature[row], lse = g.lse[row], entropy = g.entropy[row];
  const float d_log_prob = g.d_log_prob[row], d_entropy = g.d_entropy[row];
  const int64_t target = g.targets[row] - i;
  Eight x = load<kWide>(g.logits + row * g.vocab + i, left);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float log_p = x.at[e] * scale - lse, p = expf(log_p);
    const float one_hot = e == target ? 1.0F : 0.0F;
    const float from_entropy = p == 0.0F ? 0.0F : p * (log_p + entropy);
    x.at[e] = ((one_hot - p) * d_log_prob - from_entropy * d_entropy) * scale;
  }
  store<kWide>(g.dlogits + row * g.vocab + i, x, left);
}

}  // namespace

void log_prob(Exec& exec, const LogProbArgs& args) {
  const int64_t rows = args.logits.dim(0), vocab = args.logits.dim(1);
  if (rows == 0) return;
  const Forward f = {.logits = pointer<float>(args.logits),
                     .targets = pointer<int32_t>(args.targets),
                     .inverse_temperature = pointer<float>(args.inverse_temperature),
                     .log_prob = pointer<float>(args.log_prob),
                     .lse = pointer<float>(args.lse),
                     .entropy = pointer<float>(args.entropy),
                     .vocab = vocab};
  with_width(is_wide(vocab, f.logits), [&](auto wide) {
    launch_chained<log_prob_kernel<wide()>>(exec, {static_cast<unsigned>(rows), kThreads},
                                            "log_prob", f);
  });
}

void log_prob_backward(Exec& exec, const LogProbBackwardArgs& args) {
  const int64_t rows = args.logits.dim(0), vocab = args.logits.dim(1);
  if (rows == 0 || vocab == 0) return;
  with_type(args.dlogits.dtype(), [&](auto type) {
    using T = decltype(type);
    const Backward<T> g = {.logits = pointer<float>(args.logits),
                           .targets = pointer<int32_t>(args.targets),
                           .inverse_temperature = pointer<float>(args.inverse_temperature),
                           .lse = pointer<float>(args.lse),
                           .entropy = pointer<float>(args.entropy),
                           .d_log_prob = pointer<float>(args.d_log_prob),
                           .d_entropy = pointer<float>(args.d_entropy),
                           .dlogits = pointer<T>(args.dlogits),
                           .vocab = vocab,
                           .blocks = blocks_for(eights(vocab), kBackwardThreads)};
    with_width(is_wide(vocab, g.logits) && is_aligned(g.dlogits), [&](auto wide) {
      log_prob_backward_kernel<T, wide()>
          <<<blocks_for(rows * g.blocks, 1), kBackwardThreads, 0, stream_of(exec)>>>(g);
    });
    check_launch("log_prob_backward");
  });
}

}  // namespace miles::cuda
