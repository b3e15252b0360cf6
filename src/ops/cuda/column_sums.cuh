// Sums over rows in two stages, as the gradients of norm weights need them: blocks sum chunks of
// rows into the workspace, then the chunks are added in order. How rows are cut depends on their
// number and width alone, so that the same arguments give the same bits on any device.
#pragma once

#include <algorithm>

#include "ops/cuda/launch.h"

namespace miles::cuda {

struct RowExtents {
  int64_t rows, width;  // of the partial sums of one chunk, f32
};
struct RowChunks {
  int64_t size, count;  // rows of one chunk; chunks
};

/// Enough chunks to fill a large device, few enough that adding them costs little; the workspace
/// holds a row of `width` for each.
inline RowChunks row_chunks(const RowExtents& e) {
  constexpr int64_t kMost = 512;
  const int64_t room = kCudaWorkspaceBytes / static_cast<int64_t>(sizeof(float)) / e.width;
  MILES_CHECK(room > 0, "a workspace of {} bytes for rows of {} sums", kCudaWorkspaceBytes,
              e.width);
  const int64_t most = std::min(kMost, room);
  const int64_t size = (e.rows + most - 1) / most;
  return {size, (e.rows + size - 1) / size};
}

/// Partial sums, one row a chunk.
struct Partials {
  const float* values;  // [count, stride]
  int64_t count, stride, columns;
};

constexpr int kSumColumns = 32;  // of a block
constexpr int kSumGroups = 16;   // threads that share a column

/// sums[c] += Σ values[·, c]: sixteen runs of consecutive chunks, each in order, then these in
/// order.
template <int kGroups>
__global__ void __launch_bounds__(kSumColumns* kGroups)
    add_column_sums_kernel(const Partials p, float* sums) {
  __shared__ float run_sums[kGroups][kSumColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
  const int64_t run = (p.count + kGroups - 1) / kGroups;
  const int64_t begin = threadIdx.y * run, end = min(p.count, begin + run);
  float sum = 0;
  if (column < p.columns) {
#pragma unroll 8
    for (int64_t i = begin; i < end; ++i) sum += p.values[i * p.stride + column];
  }
  run_sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= p.columns) return;
  float total = sums[column];
  for (int group = 0; group < kGroups; ++group) total += run_sums[group][threadIdx.x];
  sums[column] = total;
}

inline void add_column_sums(const Exec& exec, const Partials& partials, float* sums) {
  add_column_sums_kernel<kSumGroups>
      <<<blocks_for(partials.columns, kSumColumns), dim3(kSumColumns, kSumGroups), 0,
         stream_of(exec)>>>(partials, sums);
  check_launch("add_column_sums");
}

}  // namespace miles::cuda
