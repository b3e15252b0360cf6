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
  const bool window =
      options_.slots > 0 && (options_.slots < block_count() || options_.slot_bytes > 0);
  std::vector<int64_t> sizes;
  if (window) {
    int64_t largest = options_.slot_bytes;
    for (const BlockSpan& block : options_.blocks) largest = std::max(largest, block.bytes);
    options_.slot_bytes = aligned(largest);
    sizes.assign(static_cast<size_t>(options_.slots), options_.slot_bytes);
  } else {
    options_.slots = 0;
    for (const BlockSpan& block : options_.blocks) sizes.push_back(aligned(block.bytes));
  }
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  slots_region_ = Region(memory, Place::device, options_.tag, total);
  int64_t offset = 0;
  for (const int64_t size : sizes) {
    slots_.emplace_back();
    slots_.back().data = slots_region_.data() + offset;
    offset += size;
  }
}

bool BlockStore::streamed() const {
  return options_.slots > 0;
}

void BlockStore::onload() {
  if (!in_place()) slots_region_.commit();
}

void BlockStore::offload() {
  if (in_place() || !slots_region_.committed()) return;
  flush();
  invalidate();
  slots_region_.release();
}

void BlockStore::flush() {
  throw_failure();
  for (Slot& slot : slots_)
    if (slot.dirty) write_back(slot);
  for (const Event& written : home_written_) written.synchronize();
}

void BlockStore::invalidate() {
  for (Slot& slot : slots_) {
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
  MILES_CHECK(in_place() || streamed(), "{}: blocks of a resident store are fixed", options_.tag);
  flush();
  invalidate();
  if (streamed())
    for (const BlockSpan& block : blocks)
      MILES_CHECK(block.bytes <= options_.slot_bytes, "{}: a block of {} bytes in slots of {}",
                  options_.tag, block.bytes, options_.slot_bytes);
  options_.blocks = std::move(blocks);
  home_written_.assign(options_.blocks.size(), {});
}

BlockStore::Slot* BlockStore::find(int block) {
  if (!streamed()) {
    Slot& slot = slots_[static_cast<size_t>(block)];
    return slot.block == block ? &slot : nullptr;
  }
  for (Slot& slot : slots_)
    if (slot.block == block) return &slot;
  return nullptr;
}

BlockStore::Slot* BlockStore::claim(int block) {
  if (!streamed()) return &slots_[static_cast<size_t>(block)];
  Slot* oldest = nullptr;
  for (Slot& slot : slots_)
    if (slot.leases == 0 && (oldest == nullptr || slot.last_use < oldest->last_use)) oldest = &slot;
  return oldest;
}

void BlockStore::load(Slot& slot, int block) {
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
  const BlockSpan& span = options_.blocks[static_cast<size_t>(slot.block)];
  Stream& stream = *copies_->to_host;
  stream.wait(slot.loaded);
  stream.wait(slot.used);
  stream.copy(options_.home + span.offset, slot.data, span.bytes);
  ledger_->copied(Place::host, span.bytes);
  slot.written = stream.record();
  home_written_[static_cast<size_t>(slot.block)] = slot.written;
  slot.dirty = false;
}

void BlockStore::prefetch(int block) {
  if (in_place() || block < 0 || block >= block_count() || find(block) != nullptr) return;
  MILES_CHECK(slots_region_.committed(), "{}: prefetch while offloaded", options_.tag);
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
  MILES_CHECK(slots_region_.committed(), "{}: acquire while offloaded", options_.tag);
  Slot* slot = find(block);
  if (slot == nullptr) {
    slot = claim(block);
    MILES_CHECK(slot != nullptr, "{}: all {} slots are leased", options_.tag, slots_.size());
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
    if (streamed()) write_back(slot);
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
