#include "base/error.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/eight.cuh"
#include "ops/elementwise.h"

namespace miles::cuda {
namespace {

constexpr int kThreads = 256;

/// The eight elements of this thread in a run of n.
struct Place {
  int64_t i, left;
  bool wide;
  __device__ Place(int64_t n, bool aligned)
      : i(8 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x)),
        left(n - i),
        wide(aligned && left >= 8) {}
};

/// As to_bfloat16 keeps it: the conversion instruction gives every NaN the same bits.
__device__ inline bf16 keeping_nan(float x) {
  if (x == x) return from_f32<bf16>(x);
  return __ushort_as_bfloat16(static_cast<uint16_t>((__float_as_uint(x) >> 16) | 0x40U));
}

template <bool kWide>
__device__ void narrow(const Place& at, const float* from, bf16* to) {
  const Eight x = load<kWide>(from + at.i, at.left);
  bool numbers = true;
#pragma unroll
  for (int e = 0; e < 8; ++e) numbers &= x.at[e] == x.at[e];
  if (numbers) return store<kWide>(to + at.i, x, at.left);
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (e < at.left) to[at.i + e] = keeping_nan(x.at[e]);
}
__global__ void __launch_bounds__(kThreads)
    narrow_kernel(const float* from, bf16* to, int64_t n, bool aligned) {
  const Place at(n, aligned);
  if (at.left > 0) at.wide ? narrow<true>(at, from, to) : narrow<false>(at, from, to);
}

template <bool kWide>
__device__ void widen(const Place& at, const bf16* from, float* to) {
  store<kWide>(to + at.i, load<kWide>(from + at.i, at.left), at.left);
}
__global__ void __launch_bounds__(kThreads)
    widen_kernel(const bf16* from, float* to, int64_t n, bool aligned) {
  const Place at(n, aligned);
  if (at.left > 0) at.wide ? widen<true>(at, from, to) : widen<false>(at, from, to);
}

template <bool kWide, class T>
__device__ void add(const Place& at, const T* x, const T* y, T* to) {
  const Raw<T> xs = load_raw<kWide>(x + at.i, at.left), ys = load_raw<kWide>(y + at.i, at.left);
  Eight sum = to_f32(xs);
  const Eight other = to_f32(ys);
#pragma unroll
  for (int e = 0; e < 8; ++e) sum.at[e] += other.at[e];
  store<kWide>(to + at.i, sum, at.left);
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_kernel(const T* x, const T* y, T* to, int64_t n, bool aligned) {
  const Place at(n, aligned);
  if (at.left > 0) at.wide ? add<true>(at, x, y, to) : add<false>(at, x, y, to);
}

constexpr int kSquaresThreads = 512;
constexpr int64_t kSquaresChunk = 65536;  // elements of one partial sum

/// Over a block, in one fixed order; thread 0 gets it.
__device__ inline double block_total(double x) {
  __shared__ double warps[kSquaresThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (const double warp : warps) sum += warp;
  return sum;
}

/// A thread's elements of x[begin … end).
template <bool kWide, class T>
__device__ double squares(const T* x, int64_t begin, int64_t end) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = begin + 8 * threadIdx.x; i < end; i += 8 * kSquaresThreads) {
    const Eight u = load<kWide>(x + i, end - i);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const double value = u.at[e];
      sum = fma(value, value, sum);
    }
  }
  return sum;
}

/// A block sums a chunk.
template <class T>
__global__ void __launch_bounds__(kSquaresThreads)
    squares_kernel(const T* x, int64_t n, bool aligned, double* partials) {
  const int64_t begin = blockIdx.x * kSquaresChunk, end = min(n, begin + kSquaresChunk);
  const bool wide = aligned && (end - begin) % 8 == 0;
  const double sum =
      block_total(wide ? squares<true>(x, begin, end) : squares<false>(x, begin, end));
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// One block: thread t adds partial sums t, t + 512, … in order, then the threads are added.
__global__ void __launch_bounds__(kSquaresThreads)
    add_squares_kernel(const double* partials, int64_t count, float* out) {
  double sum = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < count; i += kSquaresThreads) sum += partials[i];
  sum = block_total(sum);
  if (threadIdx.x == 0) *out = static_cast<float>(sum);
}

void convert(Exec& exec, const CastArgs& args) {
  const int64_t n = args.from.elements();
  if (n == 0) return;
  if (args.from.dtype() == args.to.dtype())
    return exec.stream.copy(args.to.data(), args.from.data(), args.from.bytes());
  const bool aligned = is_aligned(args.from.data(), args.to.data());
  const unsigned blocks = blocks_for(n, 8 * kThreads);
  if (args.to.dtype() == DType::bf16)
    narrow_kernel<<<blocks, kThreads, 0, stream_of(exec)>>>(pointer<float>(args.from),
                                                            pointer<bf16>(args.to), n, aligned);
  else
    widen_kernel<<<blocks, kThreads, 0, stream_of(exec)>>>(pointer<bf16>(args.from),
                                                           pointer<float>(args.to), n, aligned);
  check_launch("cast");
}

}  // namespace

void cast(Exec& exec, const CastArgs& args) {
  convert(exec, args);
  if (args.squares) cuda::sum_of_squares(exec, {.x = args.to, .out = args.squares});
}

void add(Exec& exec, const AddArgs& args) {
  const int64_t n = args.x.elements();
  if (n == 0) return;
  with_type(args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    add_kernel<T><<<blocks_for(n, 8 * kThreads), kThreads, 0, stream_of(exec)>>>(
        pointer<T>(args.x), pointer<T>(args.y), pointer<T>(args.sum), n,
        is_aligned(args.x.data(), args.y.data(), args.sum.data()));
    check_launch("add");
  });
}

void sum_of_squares(Exec& exec, const SumOfSquaresArgs& args) {
  const int64_t n = args.x.elements(), chunks = (n + kSquaresChunk - 1) / kSquaresChunk;
  auto* const partials = reinterpret_cast<double*>(exec.workspace.data());
  MILES_CHECK(chunks <= static_cast<int64_t>(exec.workspace.size() / sizeof(double)),
              "sum_of_squares: {} elements", n);  // 2^39 and more: no device holds them
  if (chunks > 0)
    with_type(args.x.dtype(), [&](auto type) {
      using T = decltype(type);
      squares_kernel<T><<<static_cast<unsigned>(chunks), kSquaresThreads, 0, stream_of(exec)>>>(
          pointer<T>(args.x), n, is_aligned(args.x.data()), partials);
      check_launch("sum_of_squares");
    });
  add_squares_kernel<<<1, kSquaresThreads, 0, stream_of(exec)>>>(partials, chunks,
                                                                 pointer<float>(args.out));
  check_launch("sum_of_squares");
}

}  // namespace miles::cuda
