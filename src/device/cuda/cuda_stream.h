// CUDA's streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include "device/device.h"

namespace miles::cuda {

class CudaStream : public Stream {
 public:
  CudaStream();
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  /// From or to pageable host memory too, which may block the caller, and may not: it too must stay
  /// valid until an event recorded after the copy is done.
  void copy(void* to, const void* from, int64_t bytes) override;
  void fill_zero(void* to, int64_t bytes) override;
  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;
  bool captures() const override { return true; }
  std::unique_ptr<Graph> capture(const std::function<void()>& work) override;

  cudaStream_t handle() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace miles::cuda
