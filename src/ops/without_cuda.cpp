// In a build without CUDA: what stands in for ops/cuda/.
#include "base/error.h"
#include "ops/cuda/backend.h"

namespace miles {

const Kernels& cuda_kernels() {
  fail(ErrorCode::device, "this program was built without CUDA; pass --device cpu");
}

}  // namespace miles
