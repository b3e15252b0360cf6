// The device that tests run on: the CPU, or, with MILES_TEST_DEVICE=cuda, the first GPU. Where that
// cannot be used all tests of the program are skipped. Header only: not every test program links
// the devices.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "device/device.h"

namespace miles::test {

inline bool cuda_is_wanted() {
  const char* const named = std::getenv("MILES_TEST_DEVICE");
  return named != nullptr && std::string(named) == "cuda";
}

/// What make_test_device() makes.
inline DeviceKind test_device_kind() {
  static const bool cuda = cuda_is_wanted() && cuda_device_count() > 0;
  return cuda ? DeviceKind::cuda : DeviceKind::cpu;
}
inline bool on_cuda() {
  return test_device_kind() == DeviceKind::cuda;
}

inline std::unique_ptr<Device> make_test_device() {
  return on_cuda() ? make_cuda_device() : make_cpu_device();
}

/// Whether the GPU is known to be of the generation that has kernels of its own. (A build for older
/// ones alone leaves those out: MILES_TEST_NO_HOPPER=1 says so. They are not used where
/// MILES_CUDA_SHARED_BYTES is less than Hopper has, 227 KB.)
inline bool on_hopper() {
  if (!on_cuda() || std::getenv("MILES_TEST_NO_HOPPER") != nullptr) return false;
  const char* const shared = std::getenv("MILES_CUDA_SHARED_BYTES");
  if (shared != nullptr && std::atoll(shared) < 227 * 1024) return false;
  const std::string name = make_test_device()->name();
  for (const char* hopper : {"H100", "H800", "H20"})  // H200 and GH200, too
    if (name.find(hopper) != std::string::npos) return true;
  return false;
}

/// Skips all tests when a GPU is wanted that is not there.
class NeedsTestDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    if (cuda_is_wanted() && !on_cuda())
      // GoogleTest counts what an environment skips as passed; ctest knows it by this mark.
      GTEST_SKIP() << "[  SKIPPED ] MILES_TEST_DEVICE=cuda, but this build or this machine has no "
                      "CUDA device";
  }
};
inline ::testing::Environment* const kNeedsTestDevice =
    ::testing::AddGlobalTestEnvironment(new NeedsTestDevice);

/// Host memory that the GPU's kernels reach under the same addresses. It stays as long as the
/// process; what is freed is used again.
class PinnedPool {
 public:
  void* allocate(size_t bytes) {
    std::vector<std::byte*>& free = free_[size_class(bytes)];
    if (free.empty()) return carve(size_class(bytes));
    std::byte* const p = free.back();
    free.pop_back();
    return p;
  }
  void deallocate(void* p, size_t bytes) {
    free_[size_class(bytes)].push_back(static_cast<std::byte*>(p));
  }

 private:
  static constexpr size_t kSlab = size_t{64} << 20;  // bytes pinned at a time

  static size_t size_class(size_t bytes) { return std::bit_ceil(std::max<size_t>(bytes, 256)); }
  std::byte* carve(size_t bytes) {
    if (left_ < bytes) {
      left_ = std::max(kSlab, bytes);
      slab_ = device_->host_memory().reserve(static_cast<int64_t>(left_));
      device_->host_memory().commit(slab_, static_cast<int64_t>(left_));
    }
    std::byte* const p = slab_;
    slab_ += bytes;
    left_ -= bytes;
    return p;
  }

  std::unique_ptr<Device> device_ = make_cuda_device();
  std::map<size_t, std::vector<std::byte*>> free_;  // by size
  std::byte* slab_ = nullptr;                       // what is left of the latest slab
  size_t left_ = 0;                                 // bytes
};
inline PinnedPool& pinned_pool() {
  static auto* const pool = new PinnedPool;  // outlives every static vector
  return *pool;
}

/// Allocates what both the test and the device's kernels use. Nothing of it at namespace scope:
/// CUDA must not be called before main().
template <class T>
struct TestAllocator {
  using value_type = T;
  TestAllocator() = default;
  template <class U>
  TestAllocator(const TestAllocator<U>&) {}
  T* allocate(size_t n) {
    return static_cast<T*>(on_cuda() ? pinned_pool().allocate(n * sizeof(T))
                                     : ::operator new(n * sizeof(T)));
  }
  void deallocate(T* p, size_t n) {
    if (on_cuda())
      pinned_pool().deallocate(p, n * sizeof(T));
    else
      ::operator delete(p);
  }
  bool operator==(const TestAllocator&) const { return true; }
};

}  // namespace miles::test

/// Skips a test, and the rest of it, that is about the CPU alone.
#define MILES_CPU_ONLY() \
  if (::miles::test::on_cuda()) GTEST_SKIP() << "about the CPU alone"
