#include "memory/block_store.h"

#include <algorithm>
#include <utility>

namespace miles {
namespace {

constexpr int64_t kSlotAlignment = 256;  // bytes

int64_t aligned(int64_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

}  // namespace

BlockStore::BlockStore(Memory memory, CopyStreams& copies, BlockStoreOptions options)
    : copies_(&copies),
      ledger_(&memory.ledger),
      options_(std::move(options)),
      home_written_(options_.blocks.size()) {
  if (in_place()) return;
  const bool has_window =
      options_.slots > 0 &&
      (options_.resident + options_.slots < block_count() || options_.slot_bytes > 0);
  if (!has_window) {
    options_.slots = 0;
    options_.resident = block_count();
  }
  const auto place = [&](const std::vector<int64_t>& sizes) {
    int64_t total = 0;
    for (const int64_t size : sizes) total += size;
    Region region(memory, Place::device, options_.tag, total);
    int64_t offset = 0;
    for (const int64_t size : sizes) {
      slots_.emplace_back();
      slots_.back().data = region.data() + offset;
      offset += size;
    }
    return region;
  };
  int64_t largest = options_.slot_bytes;
  std::vector<int64_t> resident;
  for (const BlockSpan& block : options_.blocks) {
    if (is_resident(static_cast<int>(resident.size())))
      resident.push_back(aligned(block.bytes));
    else
      largest = std::max(largest, block.bytes);
  }
  options_.slot_bytes = aligned(largest);
  if (!resident.empty()) resident_region_ = place(resident);
  if (options_.slots > 0)
    window_region_ =
        place(std::vector<int64_t>(static_cast<size_t>(options_.slots), options_.slot_bytes));
}

bool BlockStore::committed(int block) const {
  return (is_resident(block) ? resident_region_ : window_region_).committed();
}

void BlockStore::onload() {
  if (in_place()) return;
  const bool had_residents = resident_region_.committed();
  resident_region_.commit();
  try {
    window_region_.commit();
  } catch (...) {  // all of it or nothing
    if (!had_residents) resident_region_.release();
    throw;
  }
}

void BlockStore::offload() {
  if (!resident_region_.committed() && !window_region_.committed()) return;
  flush();
  invalidate();
  resident_region_.release();
  window_region_.release();
}

void BlockStore::offload_window() {
  if (!window_region_.committed()) return;
  throw_failure();
  for (const Event& written : home_written_) written.synchronize();
  invalidate(window());
  window_region_.release();
}

void BlockStore::flush() {
  throw_failure();
  for (Slot& slot : slots_)
    if (slot.dirty) write_back(slot);
  for (const Event& written : home_written_) written.synchronize();
}

void BlockStore::invalidate() {
  invalidate(slots_);
}

void BlockStore::invalidate(std::span<Slot> slots) {
  for (Slot& slot : slots) {
    MILES_CHECK(slot.leases == 0, "{}: block {} is leased", options_.tag, slot.block);
    // A copy that is still on its way must not land in memory that has been given back.
    slot.loaded.synchronize();
    slot.used.synchronize();
    slot.written.synchronize();
    std::byte* const data = slot.data;
    slot = Slot();
    slot.data = data;
  }
}

void BlockStore::set_blocks(std::vector<BlockSpan> blocks) {
  MILES_CHECK(in_place() || options_.resident == 0, "{}: resident blocks are fixed", options_.tag);
  flush();
  invalidate();
  if (!in_place())
    for (const BlockSpan& block : blocks)
      MILES_CHECK(block.bytes <= options_.slot_bytes, "{}: a block of {} bytes in slots of {}",
                  options_.tag, block.bytes, options_.slot_bytes);
  options_.blocks = std::move(blocks);
  home_written_.assign(options_.blocks.size(), {});
}

BlockStore::Slot* BlockStore::find(int block) {
  if (is_resident(block)) {
    Slot& slot = slots_[static_cast<size_t>(block)];
    return slot.block == block ? &slot : nullptr;
  }
  for (Slot& slot : window())
    if (slot.block == block) return &slot;
  return nullptr;
}

BlockStore::Slot* BlockStore::claim(int block) {
  if (is_resident(block)) return &slots_[static_cast<size_t>(block)];
  Slot* oldest = nullptr;
  for (Slot& slot : window())
    if (slot.leases == 0 && (oldest == nullptr || slot.last_use < oldest->last_use)) oldest = &slot;
  return oldest;
}

void BlockStore::load(Slot& slot, int block) {
  MILES_CHECK(has_home(block), "{}: block {} was never written", options_.tag, block);
  const BlockSpan& span = options_.blocks[static_cast<size_t>(block)];
  Stream& stream = *copies_->to_device;
  stream.wait(slot.used);
  stream.wait(slot.written);
  stream.wait(home_written_[static_cast<size_t>(block)]);
  stream.copy(slot.data, options_.home + span.offset, span.bytes);
  ledger_->copied(Place::device, span.bytes);
  slot.loaded = stream.record();
}

void BlockStore::write_back(Slot& slot) {
  if (!has_home(slot.block)) return;
  const BlockSpan& span = options_.blocks[static_cast<size_t>(slot.block)];
  Stream& stream = *copies_->to_host;
  stream.wait(slot.used);  // which is after its arrival
  stream.copy(options_.home + span.offset, slot.data, span.bytes);
  ledger_->copied(Place::host, span.bytes);
  slot.written = stream.record();
  home_written_[static_cast<size_t>(slot.block)] = slot.written;
  slot.dirty = false;
}

void BlockStore::prefetch(int block) {
  if (in_place() || block < 0 || block >= block_count() || find(block) != nullptr) return;
  MILES_CHECK(committed(block), "{}: prefetch while offloaded", options_.tag);
  Slot* slot = claim(block);
  if (slot == nullptr) return;
  load(*slot, block);
  slot->block = block;
  slot->last_use = ++uses_;
}

BlockStore::Lease BlockStore::acquire(int block, Access access, Stream& compute) {
  MILES_CHECK(block >= 0 && block < block_count(), "{}: block {} of {}", options_.tag, block,
              block_count());
  const BlockSpan& span = options_.blocks[static_cast<size_t>(block)];
  if (in_place()) return {this, nullptr, options_.home + span.offset, access, &compute};
  throw_failure();
  MILES_CHECK(committed(block), "{}: acquire while offloaded", options_.tag);
  Slot* slot = find(block);
  if (slot == nullptr) {
    slot = claim(block);
    MILES_CHECK(slot != nullptr, "{}: all {} slots are leased", options_.tag, options_.slots);
    slot->block = block;
    if (access != Access::overwrite) load(*slot, block);
  }
  compute.wait(slot->loaded);
  if (access != Access::read) compute.wait(slot->written);
  ++slot->leases;
  slot->last_use = ++uses_;
  return {this, slot, slot->data, access, &compute};
}

void BlockStore::release(Slot& slot, Access access, Stream& compute) noexcept {
  --slot.leases;
  try {
    slot.used = compute.record();
    if (access == Access::read) return;
    slot.dirty = true;
    if (!is_resident(slot.block)) write_back(slot);
  } catch (...) {  // the device has failed: a destructor must not end the program
    failure_ = std::current_exception();
  }
}

void BlockStore::throw_failure() {
  if (failure_) std::rethrow_exception(failure_);
}

BlockStore::Lease::Lease(Lease&& other) noexcept
    : store_(other.store_),
      slot_(std::exchange(other.slot_, nullptr)),
      data_(other.data_),
      access_(other.access_),
      compute_(other.compute_) {}

BlockStore::Lease::~Lease() {
  if (slot_ != nullptr) store_->release(*slot_, access_, *compute_);
}

}  // namespace miles
