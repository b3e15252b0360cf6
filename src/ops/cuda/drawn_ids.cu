#include "ops/cuda/backend.h"
#include "ops/cuda/launch.h"
#include "ops/drawn_ids.h"

namespace miles::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    fill_drawn_ids_kernel(int32_t* ids, const int32_t* drawn, int64_t count) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= count || ids[n] >= 0) return;
  ids[n] = max(drawn[-1 - ids[n]], 0);
}

}  // namespace

void fill_drawn_ids(Exec& exec, const FillDrawnIdsArgs& args) {
  const int64_t count = args.ids.elements();
  if (count == 0) return;
  fill_drawn_ids_kernel<<<blocks_for(count, kThreads), kThreads, 0, stream_of(exec)>>>(
      pointer<int32_t>(args.ids), pointer<const int32_t>(args.drawn), count);
  check_launch("fill_drawn_ids");
}

}  // namespace miles::cuda
