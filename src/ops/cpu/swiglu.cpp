#include "ops/swiglu.h"

#include "ops/cpu/row_loops.h"
#include "ops/cpu/vexp.h"

namespace miles::MILES_ISA {
namespace {

MILES_INLINE Vec sigmoid(Vec a) {
  return 1.0F / (1.0F + vexp(-a));
}

template <class T>
void forward(const SwigluArgs& a) {
  const int64_t rows = extent(a.y, 0), columns = extent(a.y, 1);
  const T* const gate_up = elements<T>(a.gate_up);
  T* const y = elements<T>(a.y);
#pragma omp parallel for schedule(static) if (rows * columns > kSerialElements)
  for (int64_t n = 0; n < rows; ++n) {
    const T* const gate = gate_up + n * 2 * columns;
    const T* const up = gate + columns;
    for_each_vec(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      const Vec g = load(gate + i, count);
      const Vec silu = rounded<T>(g * sigmoid(g));
      store(y + n * columns + i, silu * load(up + i, count), count);
    });
  }
}

template <class T>
void backward(const SwigluBackwardArgs& a) {
  const int64_t rows = extent(a.dy, 0), columns = extent(a.dy, 1);
  const T* const dy = elements<T>(a.dy);
  const T* const gate_up = elements<T>(a.gate_up);
  T* const dgate_up = elements<T>(a.dgate_up);
  T* const y = elements<T>(a.y);
#pragma omp parallel for schedule(static) if (rows * columns > kSerialElements)
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t gate = n * 2 * columns, up = gate + columns;
    for_each_vec(columns, [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      // Everything is read before anything is written: dgate_up may be gate_up, and y dy.
      const Vec g = load(gate_up + gate + i, count);
      const Vec u = load(gate_up + up + i, count);
      const Vec d = load(dy + n * columns + i, count);
      const Vec s = sigmoid(g);
      const Vec silu = rounded<T>(g * s);
      store(dgate_up + gate + i, d * u * (s * (1.0F + g * (1.0F - s))), count);
      store(dgate_up + up + i, d * silu, count);
      store(y + n * columns + i, silu * u, count);
    });
  }
}

}  // namespace

void swiglu(Exec&, const SwigluArgs& args) {
  if (args.y.dtype() == DType::bf16) return forward<BFloat16>(args);
  forward<float>(args);
}

void swiglu_backward(Exec&, const SwigluBackwardArgs& args) {
  if (args.dy.dtype() == DType::bf16) return backward<BFloat16>(args);
  backward<float>(args);
}

}  // namespace miles::MILES_ISA
