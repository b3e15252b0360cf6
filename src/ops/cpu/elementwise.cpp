#include "ops/elementwise.h"

#include "ops/cpu/row_loops.h"

namespace miles::MILES_ISA {
namespace {

/// Elements that one task handles.
constexpr int64_t kBlock = 16384;
/// Elements of one partial sum of squares.
constexpr int64_t kSquaresChunk = 65536;

template <class From, class To>
void convert(const CastArgs& a) {
  const int64_t n = a.from.elements();
  const From* const from = elements<From>(a.from);
  To* const to = elements<To>(a.to);
#pragma omp parallel for schedule(static) if (n > 2 * kBlock)
  for (int64_t begin = 0; begin < n; begin += kBlock)
    for_each_vec(smaller(kBlock, n - begin), [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      store(to + begin + i, load(from + begin + i, count), count);
    });
}

template <class T>
void accumulate(const AddArgs& a) {
  const int64_t n = a.x.elements();
  T* const x = elements<T>(a.x);
  const T* const y = elements<T>(a.y);
#pragma omp parallel for schedule(static) if (n > 2 * kBlock)
  for (int64_t begin = 0; begin < n; begin += kBlock)
    for_each_vec(smaller(kBlock, n - begin), [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      store(x + begin + i, load(x + begin + i, count) + load(y + begin + i, count), count);
    });
}

/// Eight f64 lanes: element i goes to lane i mod 8.
struct DoubleLanes {
  double x[8] = {};
  MILES_INLINE void add_squares(const float* values) {
#pragma omp simd
    for (int l = 0; l < 8; ++l) x[l] += static_cast<double>(values[l]) * values[l];
  }
  double sum() const {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
  }
};

template <class T>
double chunk_squares(const T* x, int64_t n) {
  DoubleLanes lanes;
  float values[kSums];  // a multiple of the eight lanes; zero beyond the end
  for (int64_t begin = 0; begin < n; begin += kSums) {
    for (int v = 0; v < kSums; v += kWidth) {
      const int64_t left = larger(0, smaller(kWidth, n - begin - v));
      store(values + v, left == 0 ? Vec{} : load(x + begin + v, static_cast<int>(left)));
    }
    lanes.add_squares(values);
    lanes.add_squares(values + 8);
  }
  return lanes.sum();
}

template <class T>
void squares(Exec& exec, const SumOfSquaresArgs& a) {
  const int64_t n = a.x.elements();
  const T* const x = elements<T>(a.x);
  // A window of partial sums at a time, so that no run is too long for the workspace.
  const int64_t window = static_cast<int64_t>(exec.workspace.size() / sizeof(double));
  auto* const partial = reinterpret_cast<double*>(exec.workspace.data());
  const int64_t chunks = (n + kSquaresChunk - 1) / kSquaresChunk;
  double total = 0;
  for (int64_t first = 0; first < chunks; first += window) {
    const int64_t count = smaller(window, chunks - first);
#pragma omp parallel for schedule(static) if (count > 1)
    for (int64_t c = 0; c < count; ++c) {
      const int64_t begin = (first + c) * kSquaresChunk;
      partial[c] = chunk_squares(x + begin, smaller(kSquaresChunk, n - begin));
    }
    for (int64_t c = 0; c < count; ++c) total += partial[c];
  }
  *elements<float>(a.out) = static_cast<float>(total);
}

}  // namespace

void cast(Exec&, const CastArgs& args) {
  const bool narrow = args.to.dtype() == DType::bf16;
  if (args.from.dtype() == args.to.dtype()) {
    __builtin_memcpy(args.to.data(), args.from.data(), static_cast<size_t>(args.from.bytes()));
  } else if (narrow) {
    convert<float, BFloat16>(args);
  } else {
    convert<BFloat16, float>(args);
  }
}

void add(Exec&, const AddArgs& args) {
  if (args.x.dtype() == DType::bf16) return accumulate<BFloat16>(args);
  accumulate<float>(args);
}

void sum_of_squares(Exec& exec, const SumOfSquaresArgs& args) {
  if (args.x.dtype() == DType::bf16) return squares<BFloat16>(exec, args);
  squares<float>(exec, args);
}

}  // namespace miles::MILES_ISA
