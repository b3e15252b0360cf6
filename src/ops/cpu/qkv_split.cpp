#include "ops/qkv_split.h"

#include "ops/cpu/row_loops.h"
#include "ops/head_limits.h"

namespace miles::MILES_ISA {
namespace {

/// Tokens whose norm gradients are summed together before chunks are added in order.
constexpr int64_t kTokenChunk = 16;

/// 1/√(mean(u²) + eps).
template <class T>
float inverse_rms(const T* u, int64_t dim, float eps) {
  const float squares = sum_over(dim, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    const Vec x = load(u + i, count);
    return x * x;
  });
  return 1.0F / __builtin_sqrtf(squares / static_cast<float>(dim) + eps);
}

/// One head's norm and rotation.
template <class T>
struct Head {
  const T* u;         // [dim]
  const T* w;         // [dim], or null: no norm
  const float* rope;  // [dim]: dim/2 cosines, then dim/2 sines
  T* to;              // [dim]
  int64_t dim;
  float eps;
};

template <class T>
void rotate(const Head<T>& head) {
  const int64_t half = head.dim / 2;
  const T *const u = head.u, *const w = head.w;
  const float* const rope = head.rope;
  T* const to = head.to;
  const float r = w != nullptr ? inverse_rms(u, head.dim, head.eps) : 1.0F;
  for_each_vec(half, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    Vec a = load(u + i, count), b = load(u + half + i, count);
    if (w != nullptr) {
      a = rounded<T>(rounded<T>(a * r) * load(w + i, count));
      b = rounded<T>(rounded<T>(b * r) * load(w + half + i, count));
    }
    const Vec c = load(rope + i, count), s = load(rope + half + i, count);
    store(to + i, a * c - b * s, count);
    store(to + half + i, b * c + a * s, count);
  });
}

template <class T>
void forward(const QkvSplitArgs& a) {
  const int64_t tokens = extent(a.q, 0), heads = extent(a.q, 1), dim = extent(a.q, 2);
  const int64_t kv_heads = extent(a.k_pool, 1), row = (heads + 2 * kv_heads) * dim;
  const T* const qkv = elements<T>(a.qkv);
  const T* const q_norm = elements<T>(a.q_norm);
  const T* const k_norm = elements<T>(a.k_norm);
  const int32_t* const positions = elements<int32_t>(a.positions);
  const int32_t* const slots = elements<int32_t>(a.slots);
  const float* const rope = elements<float>(a.rope);
  const float eps = a.eps;
  T* const q = elements<T>(a.q);
  T* const k_pool = elements<T>(a.k_pool);
  T* const v_pool = elements<T>(a.v_pool);
#pragma omp parallel for schedule(static) if (tokens * row > kSerialElements)
  for (int64_t n = 0; n < tokens; ++n) {
    const T* const from = qkv + n * row;
    const float* const angles = rope + positions[n] * dim;
    const bool kept = slots[n] >= 0;
    const int64_t slot = slots[n] * kv_heads * dim;
    for (int64_t h = 0; h < (kept ? heads + kv_heads : heads); ++h) {
      const bool query = h < heads;
      rotate<T>({.u = from + h * dim,
                 .w = query ? q_norm : k_norm,
                 .rope = angles,
                 .to = query ? q + (n * heads + h) * dim : k_pool + slot + (h - heads) * dim,
                 .dim = dim,
                 .eps = eps});
    }
    if (kept)
      __builtin_memcpy(v_pool + slot, from + (heads + kv_heads) * dim,
                       static_cast<size_t>(kv_heads * dim) * sizeof(T));
  }
}

/// What one head's backward reads and writes.
template <class T>
struct HeadGradient {
  const T* d;         // [dim] gradient of the rotated head
  const T* u;         // [dim] the head before the norm
  const T* w;         // [dim] norm weight, or null
  const float* rope;  // [dim]
  float eps;
  T* du;      // [dim] written
  float* dw;  // [dim] accumulated; null with w
};

template <class T>
void head_backward(const HeadGradient<T>& g, int64_t dim) {
  const int64_t half = dim / 2;
  float unrotated[kMaxHeadDim];
  for_each_vec(half, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    const Vec a = load(g.d + i, count), b = load(g.d + half + i, count);
    const Vec c = load(g.rope + i, count), s = load(g.rope + half + i, count);
    store(unrotated + i, a * c + b * s, count);
    store(unrotated + half + i, b * c - a * s, count);
  });
  if (g.w == nullptr) {
    for_each_vec(dim, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      store(g.du + i, load(unrotated + i, count), count);
    });
    return;
  }
  const float r = inverse_rms(g.u, dim, g.eps);
  const float dot = sum_over(dim, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    return load(unrotated + i, count) * load(g.w + i, count) * (load(g.u + i, count) * r);
  });
  const float mean = dot / static_cast<float>(dim);
  for_each_vec(dim, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    const Vec d = load(unrotated + i, count);
    const Vec normalised = load(g.u + i, count) * r;
    store(g.du + i, (d * load(g.w + i, count) - normalised * mean) * r, count);
    store(g.dw + i, madd(d, rounded<T>(normalised), load(g.dw + i, count)), count);
  });
}

/// All heads of one token; dw: [2, dim] sums for the query and the key norm, or null.
template <class T>
void token_backward(const QkvSplitBackwardArgs& a, int64_t n, float* dw) {
  const int64_t heads = extent(a.dq, 1), kv_heads = extent(a.dk, 1), dim = extent(a.dq, 2);
  const int64_t row = (heads + 2 * kv_heads) * dim;
  const T* const from = elements<T>(a.qkv) + n * row;
  T* const to = elements<T>(a.dqkv) + n * row;
  const float* const rope = elements<float>(a.rope) + elements<int32_t>(a.positions)[n] * dim;
  const T* const q_norm = elements<T>(a.q_norm);
  const T* const k_norm = elements<T>(a.k_norm);
  for (int64_t h = 0; h < heads + kv_heads; ++h) {
    const bool query = h < heads;
    const T* const d = query ? elements<T>(a.dq) + (n * heads + h) * dim
                             : elements<T>(a.dk) + (n * kv_heads + h - heads) * dim;
    head_backward<T>({.d = d,
                      .u = from + h * dim,
                      .w = query ? q_norm : k_norm,
                      .rope = rope,
                      .eps = a.eps,
                      .du = to + h * dim,
                      .dw = query ? dw : dw + dim},
                     dim);
  }
  __builtin_memcpy(to + (heads + kv_heads) * dim, elements<T>(a.dv) + n * kv_heads * dim,
                   static_cast<size_t>(kv_heads * dim) * sizeof(T));
}

/// Sums of the norms' gradients, one pair of rows a chunk of tokens.
struct NormSums {
  float* partial;  // [chunks, 2, dim]: the query norm's, then the key norm's
  int64_t chunks, dim;

  /// dw += the rows of one norm, in order.
  void add_to(float* dw, int64_t norm) const {
    if (dw == nullptr) return;
    for (int64_t c = 0; c < chunks; ++c) {
      const float* const from = partial + (2 * c + norm) * dim;
      for_each_vec(dim, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
        store(dw + i, load(dw + i, count) + load(from + i, count), count);
      });
    }
  }
};

template <class T>
void backward(Exec& exec, const QkvSplitBackwardArgs& a) {
  const int64_t tokens = extent(a.dq, 0), dim = extent(a.dq, 2), stride = 2 * dim;
  const int64_t room = static_cast<int64_t>(exec.workspace.size() / sizeof(float)) / stride;
  int64_t chunk = kTokenChunk;  // grows with the tokens alone: never with the threads
  while ((tokens + chunk - 1) / chunk > room) chunk *= 2;
  const NormSums sums = {reinterpret_cast<float*>(exec.workspace.data()),
                         (tokens + chunk - 1) / chunk, dim};
#pragma omp parallel for schedule(static) if (a.dqkv.elements() > kSerialElements)
  for (int64_t c = 0; c < sums.chunks; ++c) {
    float* const dw = sums.partial + c * stride;
    for (int64_t i = 0; i < stride; ++i) dw[i] = 0;
    for (int64_t n = c * chunk; n < smaller(tokens, (c + 1) * chunk); ++n)
      token_backward<T>(a, n, dw);
  }
  sums.add_to(elements<float>(a.dq_norm), 0);
  sums.add_to(elements<float>(a.dk_norm), 1);
}

}  // namespace

void qkv_split(Exec&, const QkvSplitArgs& args) {
  if (args.qkv.dtype() == DType::bf16) return forward<BFloat16>(args);
  forward<float>(args);
}

void qkv_split_backward(Exec& exec, const QkvSplitBackwardArgs& args) {
  if (args.dqkv.dtype() == DType::bf16) return backward<BFloat16>(exec, args);
  backward<float>(exec, args);
}

}  // namespace miles::MILES_ISA
