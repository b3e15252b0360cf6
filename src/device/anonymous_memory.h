// Memory of the host as an address space: anonymous mappings. Reserved ranges are inaccessible, so
// that a use after decommit faults at once.
#pragma once

#include "device/device.h"

namespace miles {

class AnonymousMemory : public AddressSpace {
 public:
  int64_t granularity() const override;
  std::byte* reserve(int64_t bytes) override;
  void unreserve(std::byte* base, int64_t bytes) noexcept override;
  void commit(std::byte* base, int64_t bytes) override;
  void decommit(std::byte* base, int64_t bytes) noexcept override;
};

}  // namespace miles
