// Errors of CUDA's run time and driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/error.h"

namespace miles::cuda {

/// After a call that may fail, or that was seen to: or else the next launch of a kernel would be taken
/// for the one that failed.
inline void forget_last_error() {
  (void)cudaGetLastError();
}

/// Throws Error{device} unless `result` is success; `what` says what was tried.
inline void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  forget_last_error();
  fail(ErrorCode::device, "CUDA: {}: {}", what, cudaGetErrorString(result));
}
/// The same for the driver.
void check(CUresult result, const char* what);

}  // namespace miles::cuda
