// In a build without CUDA: what stands in for device/cuda/.
#include "base/error.h"
#include "device/device.h"

namespace miles {

int cuda_device_count() {
  return 0;
}

std::unique_ptr<Device> make_cuda_device(int) {
  fail(ErrorCode::device,
       "--device cuda: this program was built without CUDA; build it where nvcc is found, or pass "
       "--device cpu");
}

}  // namespace miles
