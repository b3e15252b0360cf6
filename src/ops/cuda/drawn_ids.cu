#include "ops/cuda/backend.h"
#include "ops/cuda/chained_launch.cuh"
#include "ops/drawn_ids.h"

namespace miles::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    fill_drawn_ids_kernel(int32_t* ids, const int32_t* drawn, int64_t count) {
  wait_for_earlier_kernels();
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= count || ids[n] >= 0) return;
  ids[n] = max(drawn[-1 - ids[n]], 0);
}

}  // namespace

void fill_drawn_ids(Exec& exec, const FillDrawnIdsArgs& args) {
  const int64_t count = args.ids.elements();
  if (count == 0) return;
  launch_chained<fill_drawn_ids_kernel>(exec, {blocks_for(count, kThreads), kThreads},
                                        "fill_drawn_ids", pointer<int32_t>(args.ids),
                                        pointer<const int32_t>(args.drawn), count);
}

}  // namespace miles::cuda
