#include "device/cuda/cuda_check.h"
#include "device/cuda/probe.h"

namespace miles::cuda {
namespace {

__global__ void probe() {}

}  // namespace

bool has_kernels_for_this_device() {
  cudaFuncAttributes attributes{};
  const cudaError_t result = cudaFuncGetAttributes(&attributes, probe);
  cudaGetLastError();  // an answer, not a failure of what comes next
  return result == cudaSuccess;
}

}  // namespace miles::cuda
