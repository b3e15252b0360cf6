#include "device/device.h"

namespace miles {
namespace {

/// Hands out addresses that nothing stands behind.
class DryMemory : public AddressSpace {
 public:
  explicit DryMemory(int64_t granularity) : granularity_(granularity) {}
  int64_t granularity() const override { return granularity_; }
  std::byte* reserve(int64_t bytes) override {
    next_ += bytes;
    return reinterpret_cast<std::byte*>(next_ - bytes);
  }
  void unreserve(std::byte*, int64_t) noexcept override {}
  void commit(std::byte*, int64_t) override {}
  void decommit(std::byte*, int64_t) noexcept override {}

 private:
  int64_t granularity_;
  int64_t next_ = int64_t{1} << 44;  // far from any real mapping's usual place
};

class DryStream : public Stream {
 public:
  void copy(void*, const void*, int64_t) override {}
  void fill_zero(void*, int64_t) override {}
  Event record() override { return {}; }
  void wait(const Event&) override {}
  void synchronize() override {}
};

class DryDevice : public Device {
 public:
  explicit DryDevice(Device& like)
      : kind_(like.kind()),
        memory_(like.memory().granularity()),
        host_memory_(like.host_memory().granularity()) {}
  DeviceKind kind() const override { return kind_; }
  std::string name() const override { return "dry run"; }
  bool runs() const override { return false; }
  int64_t capacity_bytes() const override { return INT64_MAX; }
  AddressSpace& memory() override { return memory_; }
  AddressSpace& host_memory() override { return host_memory_; }
  std::unique_ptr<Stream> make_stream(StreamUse) override { return std::make_unique<DryStream>(); }

 private:
  DeviceKind kind_;
  DryMemory memory_;
  DryMemory host_memory_;
};

}  // namespace

std::unique_ptr<Device> make_dry_device(Device& like) {
  return std::make_unique<DryDevice>(like);
}

}  // namespace miles
