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
void add_all(const AddArgs& a) {
  const int64_t n = a.x.elements();
  const T* const x = elements<T>(a.x);
  const T* const y = elements<T>(a.y);
  T* const sum = elements<T>(a.sum);
#pragma omp parallel for schedule(static) if (n > 2 * kBlock)
  for (int64_t begin = 0; begin < n; begin += kBlock)
    for_each_vec(smaller(kBlock, n - begin), [&](int64_t i, int count) MILES_INLINE_LAMBDA {
      store(sum + begin + i, load(x + begin + i, count) + load(y + begin + i, count), count);
    });
}

/// Σ x² in f64, as many lanes as PartialSums has.
class Squares {
 public:
  /// v: the PartialSums vector that x's sixteen lanes go to.
  MILES_INLINE void add(int v, Vec x) {
    Half halves[2];
    __builtin_memcpy(halves, &x, sizeof halves);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
#if defined(__AVX512F__)  // the compiler would convert halves of it
      const auto value = bits_as<Doubles>(_mm512_maskz_cvtps_pd(0xFF, bits_as<__m256>(halves[h])));
#else
      const Doubles value = __builtin_convertvector(halves[h], Doubles);
#endif
      lanes_[2 * v + h] += value * value;
    }
  }
  MILES_INLINE double total() const {
    double sums[kSums];
    __builtin_memcpy(sums, lanes_, sizeof sums);
    for (int step = kSums / 2; step > 0; step /= 2)
      for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
    return sums[0];
  }

 private:
  // No vector wider than a register: the compiler would keep it in memory.
  using Half [[gnu::vector_size(kWidth * 2)]] = float;
  using Doubles [[gnu::vector_size(kWidth * 4)]] = double;
  Doubles lanes_[2 * kSumVecs] = {};
};

/// out[0] = the sum over n elements of chunk(begin, count), in chunks that do not depend on
/// threads.
template <class Chunk>
MILES_INLINE void sum_chunks(Exec& exec, int64_t n, const Tensor& out, Chunk chunk) {
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
      partial[c] = chunk(begin, smaller(kSquaresChunk, n - begin));
    }
    for (int64_t c = 0; c < count; ++c) total += partial[c];
  }
  *elements<float>(out) = static_cast<float>(total);
}

template <class T>
void squares(Exec& exec, const SumOfSquaresArgs& a) {
  const T* const x = elements<T>(a.x);
  sum_chunks(exec, a.x.elements(), a.out, [&](int64_t begin, int64_t n) MILES_INLINE_LAMBDA {
    Squares sum;
    for_each_sum_vec(n, [&](int v, int64_t i, int count)
                            MILES_INLINE_LAMBDA { sum.add(v, load(x + begin + i, count)); });
    return sum.total();
  });
}

/// What gradients need, in one pass: narrows, and sums the squares of what it stores.
void narrow_and_square(Exec& exec, const CastArgs& a) {
  const float* const from = elements<float>(a.from);
  BFloat16* const to = elements<BFloat16>(a.to);
  sum_chunks(exec, a.from.elements(), a.squares, [&](int64_t begin, int64_t n) MILES_INLINE_LAMBDA {
    Squares sum;
    for_each_sum_vec(n, [&](int v, int64_t i, int count) MILES_INLINE_LAMBDA {
      const Vec x = load(from + begin + i, count);
      store(to + begin + i, x, count);
      sum.add(v, rounded<BFloat16>(x));
    });
    return sum.total();
  });
}

}  // namespace

void sum_of_squares(Exec& exec, const SumOfSquaresArgs& args) {
  if (args.x.dtype() == DType::bf16) return squares<BFloat16>(exec, args);
  squares<float>(exec, args);
}

void cast(Exec& exec, const CastArgs& args) {
  const bool narrows = args.to.dtype() == DType::bf16 && args.from.dtype() == DType::f32;
  if (args.squares && narrows) return narrow_and_square(exec, args);
  if (args.from.dtype() == args.to.dtype()) {
    if (args.from.bytes() > 0)  // or else there may be no address
      __builtin_memcpy(args.to.data(), args.from.data(), static_cast<size_t>(args.from.bytes()));
  } else if (narrows) {
    convert<float, BFloat16>(args);
  } else {
    convert<BFloat16, float>(args);
  }
  if (args.squares) MILES_ISA::sum_of_squares(exec, {.x = args.to, .out = args.squares});
}

void add(Exec&, const AddArgs& args) {
  if (args.x.dtype() == DType::bf16) return add_all<BFloat16>(args);
  add_all<float>(args);
}

}  // namespace miles::MILES_ISA
