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

/// In f64, as many lanes as PartialSums has.
template <class T>
double chunk_squares(const T* x, int64_t n) {
  // No vector wider than a register: the compiler would keep it in memory.
  using Half [[gnu::vector_size(kWidth * 2)]] = float;
  using Doubles [[gnu::vector_size(kWidth * 4)]] = double;
  Doubles lanes[2 * kSumVecs];
  for (Doubles& lane : lanes) lane = Doubles{};
  for_each_sum_vec(n, [&](int v, int64_t i, int count) MILES_INLINE_LAMBDA {
    const Vec values = load(x + i, count);
    Half halves[2];
    __builtin_memcpy(halves, &values, sizeof halves);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const Doubles value = __builtin_convertvector(halves[h], Doubles);
      lanes[2 * v + h] += value * value;
    }
  });
  double sums[kSums];
  __builtin_memcpy(sums, lanes, sizeof sums);
  for (int step = kSums / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
  return sums[0];
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
