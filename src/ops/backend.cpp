#include "ops/backend.h"

#include "base/error.h"
#include "ops/cpu/backend.h"
#include "ops/cuda/backend.h"

namespace miles {

const Kernels& kernels(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return cpu_kernels();
    case DeviceKind::cuda:
      return cuda_kernels();
  }
  fail(ErrorCode::internal, "device kind {}", static_cast<int>(kind));
}

}  // namespace miles
