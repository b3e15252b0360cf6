// The two loops that kernels are made of: over a row's vectors, and sums over a row. A sum has
// sixteen lanes on every instruction set (element i goes to lane i mod 16) and one tree to combine
// them, so its bits depend on the row alone.
#pragma once

#include "ops/cpu/extent.h"
#include "ops/cpu/simd.h"
#include "tensor/tensor.h"

/// For the lambdas given to these loops: they are called twice, and must fold into both places.
#define MILES_INLINE_LAMBDA __attribute__((always_inline))

namespace miles::MILES_ISA {

constexpr int kSums = 16;                 // partial sums of a row
constexpr int kSumVecs = kSums / kWidth;  // vectors that hold them

/// Below this many elements touched an op runs on the caller's thread: waking others costs more.
constexpr int64_t kSerialElements = 16384;

/// The elements of a tensor whose type has been checked.
template <class T>
MILES_INLINE T* elements(const Tensor& tensor) {
  return static_cast<T*>(tensor.data());
}

/// body(i, count) for each vector of [0, n): elements i … i + count − 1, count ≤ kWidth.
template <class Body>
MILES_INLINE void for_each_vec(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) body(i, kWidth);
  if (i < n) body(i, static_cast<int>(n - i));
}

/// A row's partial sums (or maxima).
struct PartialSums {
  Vec v[kSumVecs];
};

/// The tree: lane i with lane i + 8, then i + 4, i + 2, i + 1. In registers of four lanes, which
/// every instruction set has; as a loop over an array it costs more than a short row's sum.
template <class Combine>
MILES_INLINE float combined(const PartialSums& sums, Combine combine) {
  using Four [[gnu::vector_size(16)]] = float;
  Four x[4];
  __builtin_memcpy(x, sums.v, sizeof x);
  const Four all = combine(combine(x[0], x[2]), combine(x[1], x[3]));
  const Four two = combine(all, __builtin_shufflevector(all, all, 2, 3, 0, 1));
  return combine(two, __builtin_shufflevector(two, two, 1, 0, 3, 2))[0];
}
MILES_INLINE float sum_of(const PartialSums& sums) {
  return combined(sums, [](auto a, auto b) MILES_INLINE_LAMBDA { return a + b; });
}
MILES_INLINE float max_of(const PartialSums& maxima) {
  return combined(maxima, [](auto a, auto b) MILES_INLINE_LAMBDA { return a > b ? a : b; });
}

/// body(v, i, count) for each vector of [0, n): as for_each_vec, with v the PartialSums vector it
/// goes to.
template <class Body>
MILES_INLINE void for_each_sum_vec(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
#pragma GCC unroll 4
    for (int v = 0; v < kSumVecs; ++v) body(v, i + v * kWidth, kWidth);
  }
#pragma GCC unroll 4
  for (int v = 0; v < kSumVecs; ++v, i += kWidth)
    if (i < n) body(v, i, static_cast<int>(smaller(n - i, kWidth)));
}

/// Σ term(i, count) over [0, n); a term's elements beyond `count` must be 0.
template <class Term>
MILES_INLINE float sum_over(int64_t n, Term term) {
  PartialSums sums = {};
  for_each_sum_vec(
      n, [&](int v, int64_t i, int count) MILES_INLINE_LAMBDA { sums.v[v] += term(i, count); });
  return sum_of(sums);
}

}  // namespace miles::MILES_ISA
