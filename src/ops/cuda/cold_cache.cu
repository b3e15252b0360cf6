#include "ops/cuda/cold_cache.h"
#include "ops/cuda/launch.h"

namespace miles::cuda {
namespace {

constexpr int kThreads = 512, kBlocks = 1024;

__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* x, int64_t count, uint4* any) {
  uint32_t seen = 0;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += kThreads * kBlocks)
    seen |= x[i].x;
  if (count < 0) any->x = seen;  // never; or else the compiler would leave out the reads
}

}  // namespace

void fill_cache_with_workspace(const Exec& exec) {
  auto* const words = reinterpret_cast<uint4*>(exec.workspace.data());
  read_kernel<<<kBlocks, kThreads, 0, stream_of(exec)>>>(
      words, std::ssize(exec.workspace) / static_cast<int64_t>(sizeof(uint4)), words);
  check_launch("reading the workspace");
}

}  // namespace miles::cuda
