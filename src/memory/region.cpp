#include "memory/region.h"

#include <utility>

namespace miles {

Region::Region(Memory memory, Place place, std::string tag, int64_t bytes)
    : device_(&memory.device), ledger_(&memory.ledger), place_(place), tag_(std::move(tag)) {
  MILES_CHECK(bytes >= 0, "region {} of {} bytes", tag_, bytes);
  const int64_t unit = space().granularity();
  bytes_ = (bytes + unit - 1) / unit * unit;
  if (bytes_ > 0) base_ = space().reserve(bytes_);
}

Region::~Region() {
  release();
  if (base_ != nullptr) space().unreserve(base_, bytes_);
}

Region::Region(Region&& other) noexcept {
  *this = std::move(other);
}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(ledger_, other.ledger_);
  std::swap(place_, other.place_);
  std::swap(tag_, other.tag_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(committed_, other.committed_);
  return *this;
}

AddressSpace& Region::space() const {
  return place_ == Place::device ? device_->memory() : device_->host_memory();
}

void Region::commit() {
  if (committed_) return;
  if (bytes_ > 0) {
    ledger_->take(place_, tag_, bytes_);
    try {
      space().commit(base_, bytes_);
    } catch (...) {
      ledger_->give_back(place_, tag_, bytes_);
      throw;
    }
  }
  committed_ = true;
}

void Region::release() noexcept {
  if (!committed_) return;
  if (bytes_ > 0) {
    space().decommit(base_, bytes_);
    ledger_->give_back(place_, tag_, bytes_);
  }
  committed_ = false;
}

Tensor Region::tensor(DType dtype, Shape shape, int64_t offset) const {
  const Tensor view(base_ + offset, dtype, shape);
  MILES_CHECK(offset >= 0 && offset + view.bytes() <= bytes_, "{} at {} of region {} ({} bytes)",
              shape.str(), offset, tag_, bytes_);
  return view;
}

}  // namespace miles
