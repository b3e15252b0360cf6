// Region: a range of addresses that never moves, and memory behind it that comes and goes under a
// tag of the ledger. Tensors and pointers into a region stay valid across a handoff.
#pragma once

#include <string>

#include "device/device.h"
#include "memory/ledger.h"
#include "tensor/tensor.h"

namespace miles {

/// Where memory comes from: one device, one ledger. Both outlive every region.
struct Memory {
  Device& device;
  Ledger& ledger;
};

class Region {
 public:
  Region() = default;
  /// Reserves addresses for `bytes` (rounded up to the granularity); takes no memory yet.
  Region(Memory memory, Place place, std::string tag, int64_t bytes);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  /// Brings memory behind the addresses; what it holds is undefined. No-op when it is there
  /// already. Throws Error{budget}; then nothing has changed.
  void commit();
  /// Gives the memory back; the content is lost. No-op when it is gone already.
  void release() noexcept;

  bool committed() const { return committed_; }
  std::byte* data() const { return base_; }
  int64_t bytes() const { return bytes_; }  // rounded up: what the ledger counts
  /// A tensor that starts `offset` bytes into the region; it must lie inside.
  Tensor tensor(DType dtype, Shape shape, int64_t offset = 0) const;

 private:
  AddressSpace& space() const;

  Device* device_ = nullptr;
  Ledger* ledger_ = nullptr;
  Place place_ = Place::device;
  std::string tag_;
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
  bool committed_ = false;
};

}  // namespace miles
