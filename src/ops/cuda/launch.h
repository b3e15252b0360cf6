// What every CUDA op needs around its kernels: the stream, the launch's result, the element type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles::cuda {

using bf16 = __nv_bfloat16;

inline cudaStream_t stream_of(const Exec& exec) {
  return static_cast<CudaStream&>(exec.stream).handle();
}

/// Throws Error{device} when the kernel just launched could not be.
inline void check_launch(const char* kernel) {
  check(cudaGetLastError(), kernel);
}

/// Calls `body` with a value of the tensor's element type on the device: float or bf16.
template <class Body>
void with_type(DType dtype, Body&& body) {
  if (dtype == DType::f32)
    body(float{});
  else
    body(bf16{});
}

/// The elements, as the device names their type; null for an empty tensor.
template <class T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.data());
}

/// Blocks for `work` items, so many a block.
inline unsigned blocks_for(int64_t work, int64_t per_block) {
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

/// Of the device in use.
inline int64_t multiprocessors() {
  static const int count = [] {
    int device = 0, value = 0;
    check(cudaGetDevice(&device), "asking for the device");
    check(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device),
          "asking for the number of multiprocessors");
    return value;
  }();
  return count;
}

}  // namespace miles::cuda
