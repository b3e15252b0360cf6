// Launches whose start overlaps the end of the kernel before them on the stream (programmatic
// dependent launch, from compute capability 9.0): between two small kernels there is no gap then. A
// kernel that is launched so calls wait_for_earlier_kernels() before anything else; elsewhere that
// is nothing, and the launch is an ordinary one.
//
// Why that is right. The wait ends when the kernel before is complete and what it wrote can be
// seen; that kernel had waited for the one before it in the same way, or was launched in the
// ordinary way. So whoever is past the wait has every earlier kernel behind it, and only blocks
// that do nothing yet are early.
#pragma once

#include "ops/cuda/launch.h"

namespace miles::cuda {

/// To be called by all threads, before any access to memory. Then lets the next kernel's blocks
/// come, where there is room for them beside this one's: they wait in turn.
__device__ inline void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// How many blocks, threads a block, and bytes of dynamic shared memory.
struct LaunchShape {
  dim3 blocks, threads;
  size_t shared = 0;
};

/// Whether the kernel that would run here was compiled with the wait.
template <auto kKernel>
bool can_chain() {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking");
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kKernel)),
        "asking for a kernel");
  return major >= 9 && attributes.ptxVersion >= 90;
}

/// kKernel(argument), a kernel that waits for earlier ones itself.
template <auto kKernel, class... Arguments>
void launch_chained(const Exec& exec, const LaunchShape& shape, const char* name,
                    Arguments... arguments) {
  static const bool chains = can_chain<kKernel>();  // devices of one process are alike
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared;
  config.stream = stream_of(exec);
  config.attrs = &overlap;
  config.numAttrs = chains ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kKernel, arguments...), name);
}

}  // namespace miles::cuda
