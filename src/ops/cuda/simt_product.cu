#include "ops/cuda/numeric.cuh"
#include "ops/cuda/product.h"

namespace miles::cuda {
namespace {

constexpr int kTile = 64;      // rows and columns of a block's part of the result
constexpr int kDepth = 16;     // k of an operand tile
constexpr int kThreads = 256;  // 16 × 16, each 4 × 4 of the result

/// Elements [k][row] of an operand's tile; outside the operand 0.
template <class T>
__device__ void load_tile(float (&tile)[kDepth][kTile + 4], const Operand& operand, int64_t row0,
                          int64_t rows, int64_t k0, int64_t depth) {
  const T* const data = static_cast<const T*>(operand.data);
  const bool k_inner = operand.k_stride == 1;  // neighbours in memory are neighbours in k
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kTile; i += kThreads) {
    const int k = k_inner ? i % kDepth : i / kTile;
    const int row = k_inner ? i / kDepth : i % kTile;
    const bool inside = row0 + row < rows && k0 + k < depth;
    tile[k][row] =
        inside ? to_f32(data[(row0 + row) * operand.row_stride + (k0 + k) * operand.k_stride])
               : 0.0F;
  }
}

/// The chains of multiply-adds run over ascending k and skip what lies beyond the depth, so that a
/// −0 stays one.
template <class In, class Out>
__global__ void __launch_bounds__(kThreads) simt_kernel(Product p) {
  __shared__ float a[kDepth][kTile + 4], b[kDepth][kTile + 4];
  const int64_t row0 = int64_t{blockIdx.y} * kTile, column0 = int64_t{blockIdx.x} * kTile;
  const int row = static_cast<int>(threadIdx.x) / 16 * 4,
            column = static_cast<int>(threadIdx.x) % 16 * 4;
  float sum[4][4] = {};
  for (int64_t k0 = 0; k0 < p.depth; k0 += kDepth) {
    load_tile<In>(a, p.a, row0, p.rows, k0, p.depth);
    load_tile<In>(b, p.b, column0, p.columns, k0, p.depth);
    __syncthreads();
    const int depth =
        static_cast<int>(min(static_cast<long long>(kDepth), static_cast<long long>(p.depth - k0)));
    for (int k = 0; k < depth; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(a[k][row + i], b[k][column + j], sum[i][j]);
    __syncthreads();
  }
  Out* const out = static_cast<Out*>(p.result);
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row0 + row + i >= p.rows || column0 + column + j >= p.columns) continue;
      const int64_t at = (row0 + row + i) * p.columns + column0 + column + j;
      out[at] = from_f32<Out>(p.accumulate ? to_f32(out[at]) + sum[i][j] : sum[i][j]);
    }
}

template <class In>
void launch(const dim3& grid, cudaStream_t stream, const Product& product) {
  if (product.out == DType::f32)
    simt_kernel<In, float><<<grid, kThreads, 0, stream>>>(product);
  else
    simt_kernel<In, bf16><<<grid, kThreads, 0, stream>>>(product);
}

}  // namespace

void simt_product(Exec& exec, const Product& product) {
  // y is limited to 65,535 blocks: more rows come in pieces.
  constexpr int64_t kMostRows = int64_t{65535} * kTile;
  const int64_t out_bytes = size_of(product.out), in_bytes = size_of(product.in);
  for (int64_t first = 0; first < product.rows; first += kMostRows) {
    Product piece = product;
    piece.rows = product.rows - first < kMostRows ? product.rows - first : kMostRows;
    piece.a.data =
        static_cast<const std::byte*>(product.a.data) + first * product.a.row_stride * in_bytes;
    piece.result = static_cast<std::byte*>(product.result) + first * product.columns * out_bytes;
    const dim3 grid(blocks_for(piece.columns, kTile), blocks_for(piece.rows, kTile));
    with_type(product.in,
              [&](auto element) { launch<decltype(element)>(grid, stream_of(exec), piece); });
    check_launch("simt_product");
  }
}

}  // namespace miles::cuda
