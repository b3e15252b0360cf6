// A GPU to plan for: it has a size, and nothing behind it.
#pragma once

#include <cstdlib>

#include "device/device.h"

namespace miles::test {

inline constexpr int64_t kGiB = int64_t{1} << 30;

class FakeGpu : public Device {
 public:
  /// `foreign`: what others hold of it. Both bytes.
  explicit FakeGpu(int64_t capacity, int64_t foreign = 0)
      : capacity_(capacity), foreign_(foreign) {}
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return "fake GPU"; }
  int64_t capacity_bytes() const override { return capacity_; }
  int64_t foreign_bytes() const override { return foreign_; }
  AddressSpace& memory() override { return dry_->memory(); }
  AddressSpace& host_memory() override { return dry_->host_memory(); }
  std::unique_ptr<Stream> make_stream(StreamUse) override { std::abort(); }

 private:
  int64_t capacity_, foreign_;
  std::unique_ptr<Device> cpu_ = make_cpu_device();
  std::unique_ptr<Device> dry_ = make_dry_device(*cpu_);  // whose addresses nobody may touch
};

/// Of 24 GiB, of which others hold `foreign` bytes.
inline FakeGpu gpu24(int64_t foreign) {
  return FakeGpu(24 * kGiB, foreign);
}

}  // namespace miles::test
