// Errors of CUDA's run time and driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/error.h"

namespace miles::cuda {

/// Throws Error{device} unless `result` is success; `what` says what was tried.
inline void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess)
    fail(ErrorCode::device, "CUDA: {}: {}", what, cudaGetErrorString(result));
}
/// The same for the driver.
void check(CUresult result, const char* what);

}  // namespace miles::cuda
