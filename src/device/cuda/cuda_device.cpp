#include <memory>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/probe.h"
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
    check(cudaMemGetInfo(&free, &total), "asking for the size of device memory");
    capacity_ = static_cast<int64_t>(total);
  }
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return name_; }
  int64_t capacity_bytes() const override { return capacity_; }
  int64_t foreign_bytes() const override {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for free device memory");
    return static_cast<int64_t>(total - free) - memory_.held_bytes();
  }
  int64_t exchange_bytes() const override { return memory_.unowned_bytes(); }
  AddressSpace& memory() override { return memory_; }
  AddressSpace& host_memory() override { return host_memory_; }
  std::unique_ptr<Stream> make_stream(StreamUse) override { return std::make_unique<CudaStream>(); }

 private:
  static int start(int index) {
    check(cudaSetDevice(index), "opening the device");
    check(cudaFree(nullptr), "opening the device");
    if (!has_kernels_for_this_device())
      fail(ErrorCode::device,
           "--device cuda: this program was not compiled for this GPU; build it with "
           "-DMILES_CUDA_ARCHITECTURES=native on this machine, or with the preset cuda, or pass "
           "--device cpu");
    return index;
  }

  int index_;
  VirtualMemory memory_;
  PinnedMemory host_memory_;
  std::string name_;
  int64_t capacity_ = 0;  // bytes
};

/// Why no device can be used, and what to do.
std::string why_none(cudaError_t result) {
  int version = 0;
  if (result == cudaErrorInsufficientDriver && cudaDriverGetVersion(&version) == cudaSuccess)
    return version == 0 ? "no driver is installed; install NVIDIA's"
                        : fmt::format(
                              "its driver knows CUDA {}.{}, this program needs {}.{}; "
                              "update it",
                              version / 1000, version % 1000 / 10, CUDART_VERSION / 1000,
                              CUDART_VERSION % 1000 / 10);
  return fmt::format("{}; look at nvidia-smi and CUDA_VISIBLE_DEVICES",
                     result == cudaSuccess ? "the driver shows none" : cudaGetErrorString(result));
}

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
         "--device cuda: no CUDA device can be used here: {}, or pass --device cpu",
         cuda::why_none(result));
  if (index < 0 || index >= count)
    fail(ErrorCode::device, "CUDA device {} was asked for, where there are 0 … {}", index,
         count - 1);
  return std::make_unique<cuda::CudaDevice>(index);
}

}  // namespace miles
