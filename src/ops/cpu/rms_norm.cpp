#include "ops/rms_norm.h"

#include "ops/cpu/row_loops.h"

namespace miles::MILES_ISA {
namespace {

/// Rows of dw summed before they are added to it: keeps a long batch's rounding errors small.
constexpr int64_t kRowChunk = 128;
/// Columns of dw that one task sums.
constexpr int64_t kColumnBlock = 64;

template <class T>
void add_row(T* x, const T* delta, int64_t columns) {
  for_each_vec(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    store(x + i, load(x + i, count) + load(delta + i, count), count);
  });
}

template <class T>
float normalise_row(const T* x, const T* w, T* y, int64_t columns, float eps) {
  const float squares = sum_over(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    const Vec u = load(x + i, count);
    return u * u;
  });
  const float r = 1.0F / __builtin_sqrtf(squares / static_cast<float>(columns) + eps);
  for_each_vec(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    store(y + i, rounded<T>(load(x + i, count) * r) * load(w + i, count), count);
  });
  return r;
}

template <class T>
void forward(const RmsNormArgs& a) {
  const int64_t rows = extent(a.x, 0), columns = extent(a.x, 1);
  T* const x = elements<T>(a.x);
  const T* const delta = elements<T>(a.delta);
  const T* const w = elements<T>(a.w);
  T* const y = elements<T>(a.y);
  float* const rstd = elements<float>(a.rstd);
  const float eps = a.eps;
#pragma omp parallel for schedule(static) if (rows * columns > kSerialElements)
  for (int64_t n = 0; n < rows; ++n) {
    if (delta != nullptr) add_row(x + n * columns, delta + n * columns, columns);
    const float r = normalise_row(x + n * columns, w, y + n * columns, columns, eps);
    if (rstd != nullptr) rstd[n] = r;
  }
}

/// dx += r·(g − x̂·mean(g∘x̂)) with g = dy∘w, x̂ = x·r.
template <class T>
void backward_row(const T* dy, const T* x, const T* w, float r, T* dx, int64_t columns) {
  const float dot = sum_over(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    return load(dy + i, count) * load(w + i, count) * (load(x + i, count) * r);
  });
  const float mean = dot / static_cast<float>(columns);
  for_each_vec(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
    const Vec g = load(dy + i, count) * load(w + i, count);
    const Vec normalised = load(x + i, count) * r;
    store(dx + i, load(dx + i, count) + (g - normalised * mean) * r, count);
  });
}

/// One vector of dw: rows in order, in chunks.
template <class T>
MILES_INLINE void backward_weight(const T* dy, const T* x, const float* rstd, float* dw,
                                  int64_t rows, int64_t columns, int count) {
  Vec total = load(dw, count);
  for (int64_t begin = 0; begin < rows; begin += kRowChunk) {
    Vec sum = {};
    for (int64_t n = begin; n < smaller(rows, begin + kRowChunk); ++n) {
      const Vec normalised = rounded<T>(load(x + n * columns, count) * rstd[n]);
      sum = madd(load(dy + n * columns, count), normalised, sum);
    }
    total += sum;
  }
  store(dw, total, count);
}

template <class T>
void backward(const RmsNormBackwardArgs& a) {
  const int64_t rows = extent(a.x, 0), columns = extent(a.x, 1);
  const T* const dy = elements<T>(a.dy);
  const T* const x = elements<T>(a.x);
  const T* const w = elements<T>(a.w);
  const float* const rstd = elements<float>(a.rstd);
  T* const dx = elements<T>(a.dx);
  float* const dw = elements<float>(a.dw);
#pragma omp parallel if (rows * columns > kSerialElements)
  {
#pragma omp for schedule(static) nowait
    for (int64_t n = 0; n < rows; ++n)
      backward_row(dy + n * columns, x + n * columns, w, rstd[n], dx + n * columns, columns);
#pragma omp for schedule(static)
    for (int64_t begin = 0; begin < columns; begin += kColumnBlock)
      for_each_vec(smaller(columns - begin, kColumnBlock),
                   [&](int64_t i, int count) MILES_INLINE_LAMBDA {
                     const int64_t c = begin + i;
                     backward_weight(dy + c, x + c, rstd, dw + c, rows, columns, count);
                   });
  }
}

}  // namespace

void rms_norm(Exec&, const RmsNormArgs& args) {
  if (args.x.dtype() == DType::bf16) return forward<BFloat16>(args);
  forward<float>(args);
}

void rms_norm_backward(Exec&, const RmsNormBackwardArgs& args) {
  if (args.x.dtype() == DType::bf16) return backward<BFloat16>(args);
  backward<float>(args);
}

}  // namespace miles::MILES_ISA
