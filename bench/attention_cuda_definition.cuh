// Attention and its gradients by their definition, in f64; and how far a result is from it.
#pragma once

#include "bench/attention_cuda_training.cuh"

namespace miles::cuda {
namespace {

/// Its operands and results; p and ds are [N, Hq, longest].
template <class T>
struct Definition {
  const T *q, *k, *v, *dout;
  const int32_t* sequence_begin;  // of each token
  const int32_t* sequence_end;
  int64_t tokens, heads, kv_heads, dim, longest;
  double scale;
  double *out, *lse, *p, *ds, *dq, *dk, *dv;
};
__device__ double f64(float x) {
  return x;
}
__device__ double f64(bf16 x) {
  return __bfloat162float(x);
}

/// A thread for each row.
template <class T>
__global__ void define_rows(Definition<T> f) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= f.tokens * f.heads) return;
  const int64_t n = row / f.heads, kv = row % f.heads / (f.heads / f.kv_heads);
  const int64_t begin = f.sequence_begin[n];
  double *p = f.p + row * f.longest, *ds = f.ds + row * f.longest;
  double top = -1e300, sum = 0, delta = 0;
  for (int64_t j = begin; j <= n; ++j) {
    double s = 0, dp = 0;
    for (int64_t d = 0; d < f.dim; ++d) {
      s += f64(f.q[row * f.dim + d]) * f64(f.k[(j * f.kv_heads + kv) * f.dim + d]);
      dp += f64(f.dout[row * f.dim + d]) * f64(f.v[(j * f.kv_heads + kv) * f.dim + d]);
    }
    p[j - begin] = s * f.scale;
    ds[j - begin] = dp;
    top = fmax(top, s * f.scale);
  }
  for (int64_t j = begin; j <= n; ++j) sum += exp(p[j - begin] - top);
  f.lse[row] = top + log(sum);
  for (int64_t j = begin; j <= n; ++j) p[j - begin] = exp(p[j - begin] - f.lse[row]);
  for (int64_t d = 0; d < f.dim; ++d) {
    double out = 0;
    for (int64_t j = begin; j <= n; ++j)
      out += p[j - begin] * f64(f.v[(j * f.kv_heads + kv) * f.dim + d]);
    f.out[row * f.dim + d] = out;
    delta += out * f64(f.dout[row * f.dim + d]);
  }
  for (int64_t j = begin; j <= n; ++j) ds[j - begin] = p[j - begin] * (ds[j - begin] - delta);
}

/// A thread for each element of dq.
template <class T>
__global__ void define_dq(Definition<T> f) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= f.tokens * f.heads * f.dim) return;
  const int64_t row = i / f.dim, n = row / f.heads, kv = row % f.heads / (f.heads / f.kv_heads);
  double sum = 0;
  for (int64_t j = f.sequence_begin[n]; j <= n; ++j)
    sum += f.ds[row * f.longest + j - f.sequence_begin[n]] *
           f64(f.k[(j * f.kv_heads + kv) * f.dim + i % f.dim]);
  f.dq[i] = sum * f.scale;
}

/// A thread for each element of dk and dv.
template <class T>
__global__ void define_dkv(Definition<T> f) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= f.tokens * f.kv_heads * f.dim) return;
  const int64_t j = i / f.dim / f.kv_heads, kv = i / f.dim % f.kv_heads, d = i % f.dim;
  const int64_t group = f.heads / f.kv_heads;
  double dk = 0, dv = 0;
  for (int64_t n = j; n < f.sequence_end[j]; ++n)
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      const int64_t row = n * f.heads + h, at = row * f.longest + j - f.sequence_begin[j];
      dk += f.ds[at] * f64(f.q[row * f.dim + d]);
      dv += f.p[at] * f64(f.dout[row * f.dim + d]);
    }
  f.dk[i] = dk * f.scale;
  f.dv[i] = dv;
}

struct Difference {
  double relative = 0, largest = 0;  // root mean square over that of `want`; absolute
};
template <class T>
Difference compare(const Buffer<T>& got, const Buffer<double>& want) {
  const auto a = got.host();
  const auto b = want.host();
  double square = 0, of_want = 0;
  Difference d;
  for (size_t i = 0; i < b.size(); ++i) {
    const double difference = std::abs(static_cast<double>(static_cast<float>(a[i])) - b[i]);
    if (!(difference <= d.largest)) d.largest = difference;  // keeps NaN
    square += difference * difference;
    of_want += b[i] * b[i];
  }
  d.relative = std::sqrt(square / std::max(of_want, 1e-300));
  return d;
}

}  // namespace
}  // namespace miles::cuda
