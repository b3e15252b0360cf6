#include <memory>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "device/device.h"

namespace miles {
namespace cuda {
namespace {

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : index_(start(index)), memory_(index_) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, index_), "asking for the device's properties");
    name_ = properties.name;
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for free device memory");
    capacity_ = static_cast<int64_t>(free);
  }
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return name_; }
  int64_t capacity_bytes() const override { return capacity_; }
  AddressSpace& memory() override { return memory_; }
  AddressSpace& host_memory() override { return host_memory_; }
  std::unique_ptr<Stream> make_stream(StreamUse) override { return std::make_unique<CudaStream>(); }

 private:
  static int start(int index) {
    check(cudaSetDevice(index), "opening the device");
    check(cudaFree(nullptr), "opening the device");
    return index;
  }

  int index_;
  VirtualMemory memory_;
  PinnedMemory host_memory_;
  std::string name_;
  int64_t capacity_ = 0;  // bytes that were free when it was opened
};

}  // namespace
}  // namespace cuda

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<Device> make_cuda_device(int index) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess || count == 0)
    fail(ErrorCode::device,
         "--device cuda: no CUDA device can be used here ({}); install NVIDIA's driver, or pass "
         "--device cpu",
         result != cudaSuccess ? cudaGetErrorString(result) : "the driver shows none");
  if (index < 0 || index >= count)
    fail(ErrorCode::device, "CUDA device {} was asked for, where there are 0 … {}", index,
         count - 1);
  return std::make_unique<cuda::CudaDevice>(index);
}

}  // namespace miles
