// How much shared memory a block may have, and asking for it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "ops/cuda/launch.h"

namespace miles::cuda {

inline constexpr int kLeastShared = 99 * 1024;    // of the cards that we compile for
inline constexpr int kHopperShared = 227 * 1024;  // of Hopper

/// Bytes of shared memory that a block can have: 227 KB on sm_90, 163 KB on sm_80, 99 KB on sm_86
/// and sm_89. Kernels are cut to fit, or others are taken; which changes no bit.
/// MILES_CUDA_SHARED_BYTES lowers it, and so may a test, to run here what a smaller card runs; throws
/// Error{flags} when that is no number from kLeastShared on.
inline std::atomic<int>& shared_limit() {
  static std::atomic<int> limit = [] {
    int device = 0, bytes = 0;
    check(cudaGetDevice(&device), "asking for the device");
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "asking for the shared memory of a block");
    const char* const given = std::getenv("MILES_CUDA_SHARED_BYTES");
    if (given == nullptr) return bytes;
    char* end = nullptr;
    const int64_t lower = std::strtoll(given, &end, 10);
    if (end == given || *end != 0 || lower < kLeastShared)
      fail(ErrorCode::flags, "MILES_CUDA_SHARED_BYTES={}: a number of bytes from {}", given,
           kLeastShared);
    return static_cast<int>(std::min<int64_t>(bytes, lower));
  }();
  return limit;
}

/// Lets a kernel have more than 48 KB of shared memory: once per kernel and device.
template <auto kKernel>
void allow_shared(int bytes) {
  static std::atomic<uint64_t> allowed = 0;  // a bit per device
  int device = 0;
  check(cudaGetDevice(&device), "asking for the device");
  const uint64_t bit = uint64_t{1} << (device & 63);
  if (allowed.load(std::memory_order_relaxed) & bit) return;
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "raising a kernel's shared memory");
  allowed.fetch_or(bit, std::memory_order_relaxed);
}

}  // namespace miles::cuda
