#include "ops/rms_norm.h"

#include "ops/cpu/row_loops.h"

namespace miles::MILES_ISA {
namespace {

/// Rows of dw summed before they are added to it: keeps a long batch's rounding errors small.
constexpr int64_t kRowChunk = 128;
/// Columns of dw that one task sums.
constexpr int64_t kColumnBlock = 64;

template <class T>
struct Forward {
  const T* x;      // [rows, columns]
  const T* delta;  // [rows, columns] or null
  T* sum;          // [rows, columns], with delta
  const T* w;      // [columns]
  T* y;            // [rows, columns]
  float* rstd;     // [rows] or null
  int64_t columns;
  float eps;

  void add_delta(int64_t n) const {
    const int64_t at = n * columns;
    for_each_vec(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      store(sum + at + i, load(x + at + i, count) + load(delta + at + i, count), count);
    });
  }

  void row(int64_t n) const {
    if (delta != nullptr) add_delta(n);
    const T* const from = (delta != nullptr ? sum : x) + n * columns;
    T* const to = y + n * columns;
    const float squares = sum_over(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      const Vec u = load(from + i, count);
      return u * u;
    });
    const float r = 1.0F / __builtin_sqrtf(squares / static_cast<float>(columns) + eps);
    for_each_vec(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      store(to + i, rounded<T>(load(from + i, count) * r) * load(w + i, count), count);
    });
    if (rstd != nullptr) rstd[n] = r;
  }
};

template <class T>
void forward(const RmsNormArgs& a) {
  const int64_t rows = extent(a.x, 0), columns = extent(a.x, 1);
  const Forward<T> norm = {.x = elements<T>(a.x),
                           .delta = elements<T>(a.delta),
                           .sum = elements<T>(a.sum ? a.sum : a.x),
                           .w = elements<T>(a.w),
                           .y = elements<T>(a.y),
                           .rstd = elements<float>(a.rstd),
                           .columns = columns,
                           .eps = a.eps};
#pragma omp parallel for schedule(static) if (rows * columns > kSerialElements)
  for (int64_t n = 0; n < rows; ++n) norm.row(n);
}

template <class T>
struct Backward {
  const T* dy;         // [rows, columns]
  const T* x;          // [rows, columns]
  const T* w;          // [columns]
  const float* rstd;   // [rows]
  const T* dresidual;  // [rows, columns]
  T* dx;               // [rows, columns]; may be dresidual or x
  float* dw;           // [columns]
  int64_t rows, columns;

  /// dx = dresidual + r·(g − x̂·mean(g∘x̂)) with g = dy∘w, x̂ = x·r.
  void row(int64_t n) const {
    const int64_t at = n * columns;
    const float r = rstd[n];
    const float dot = sum_over(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      return load(dy + at + i, count) * load(w + i, count) * (load(x + at + i, count) * r);
    });
    const float mean = dot / static_cast<float>(columns);
    for_each_vec(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      const Vec g = load(dy + at + i, count) * load(w + i, count);
      const Vec normalised = load(x + at + i, count) * r;
      store(dx + at + i, load(dresidual + at + i, count) + (g - normalised * mean) * r, count);
    });
  }

  /// One vector of dw: rows in order, in chunks.
  MILES_INLINE void weight(int64_t column, int count) const {
    Vec total = load(dw + column, count);
    for (int64_t begin = 0; begin < rows; begin += kRowChunk) {
      Vec sum = {};
      for (int64_t n = begin; n < smaller(rows, begin + kRowChunk); ++n) {
        const int64_t at = n * columns + column;
        sum = madd(load(dy + at, count), rounded<T>(load(x + at, count) * rstd[n]), sum);
      }
      total += sum;
    }
    store(dw + column, total, count);
  }
};

template <class T>
void backward(const RmsNormBackwardArgs& a) {
  const int64_t rows = extent(a.x, 0), columns = extent(a.x, 1);
  const Backward<T> norm = {.dy = elements<T>(a.dy),
                            .x = elements<T>(a.x),
                            .w = elements<T>(a.w),
                            .rstd = elements<float>(a.rstd),
                            .dresidual = elements<T>(a.dresidual ? a.dresidual : a.dx),
                            .dx = elements<T>(a.dx),
                            .dw = elements<float>(a.dw),
                            .rows = rows,
                            .columns = columns};
#pragma omp parallel if (rows * columns > kSerialElements)
  {
    // First, for dx may take x's place.
#pragma omp for schedule(static)
    for (int64_t begin = 0; begin < columns; begin += kColumnBlock)
      for_each_vec(smaller(columns - begin, kColumnBlock),
                   [&](int64_t i, int count)
                       MILES_INLINE_LAMBDA { norm.weight(begin + i, count); });
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows; ++n) norm.row(n);
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
