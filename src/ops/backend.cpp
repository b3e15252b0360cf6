#include "ops/backend.h"

#include "base/error.h"
#include "ops/cpu/backend.h"

namespace miles {

const Kernels& kernels(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return cpu_kernels();
    case DeviceKind::cuda:
      break;
  }
  fail(ErrorCode::device,
       "this build has no CUDA backend: configure it with -DMILES_CUDA=ON, or run with --device "
       "cpu");
}

}  // namespace miles
