// BlockStore: state that is used block by block (weights of a layer, optimizer moments, a
// micro-batch's residual stream). At rest it lies in a home; to be used, a block is brought to the
// device and leased.
//
//   const Lease w = weights.acquire(layer, Access::read, compute);  // when its copy has arrived
//   weights.prefetch(layer + 1);                                    // while this one computes
//   … kernels on `compute` read w.data() …
//   // ~Lease records the event after which the slot may be overwritten
//
// Three ways to keep it, one code: a home on the device (leases point into it, nothing is ever
// copied), a slot for every block (resident; written back when it leaves), or a window of slots
// that blocks take turns in (streamed; written back after each use). With a window the first few
// blocks may be resident beside it. All give the same bits. The idea of acquire/use/release follows
// LLMQ's weight streaming (arXiv:2512.15306); here the release cannot be forgotten.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "memory/region.h"

namespace miles {

/// The two copy directions, each a stream of its own. One pair serves all stores of a process.
struct CopyStreams {
  explicit CopyStreams(Device& device)
      : to_device(device.make_stream(StreamUse::copy_to_device)),
        to_host(device.make_stream(StreamUse::copy_to_host)) {}
  std::unique_ptr<Stream> to_device;
  std::unique_ptr<Stream> to_host;
};

/// One block's place in its home.
struct BlockSpan {
  int64_t offset = 0;  // bytes from the start of the home
  int64_t bytes = 0;
};

/// What the holder of a lease does with the block.
enum class Access {
  read,       // reads it
  update,     // reads and writes it
  overwrite,  // writes all of it; what it held is not brought
};

struct BlockStoreOptions {
  Place home_place = Place::host;
  std::byte* home = nullptr;  // not owned; committed by its owner while blocks are used
  std::vector<BlockSpan> blocks;
  std::string tag;         // of the slots on the device
  int slots = 0;           // of the window; 0: none, all blocks are resident
  int resident = 0;        // with a window: the first so many blocks have slots of their own
  bool homeless = false;   // resident blocks have no home: what they hold goes with their slots
  int64_t slot_bytes = 0;  // of a window's slots; 0: the largest of `blocks`
};

class BlockStore {
 public:
  class Lease;

  BlockStore(Memory memory, CopyStreams& copies, BlockStoreOptions options);

  /// Brings the slots' memory; blocks come when they are asked for. No-op when it is there.
  void onload();
  /// Writes back what has changed, waits for it, and gives the slots' memory back. No-op when it is
  /// gone.
  void offload();
  /// Gives the window's memory back; resident blocks stay. onload() brings it again.
  void offload_window();
  /// Writes back what has changed and waits: afterwards the home holds the newest of every block.
  void flush();
  /// Forgets what the slots hold, because the home has changed under them. No lease may be out.
  void invalidate();
  /// Other blocks in the same home, none larger than a slot. Only for a window or a home on the
  /// device; forgets what the slots hold.
  void set_blocks(std::vector<BlockSpan> blocks);

  /// Starts bringing a block, if there is a slot that nobody leases. Never waits.
  void prefetch(int block);
  /// The block, once `compute` has passed its arrival. At most `slots` of the window's are leased at
  /// a time. Throws what an earlier lease's release could not.
  [[nodiscard]] Lease acquire(int block, Access access, Stream& compute);

  int block_count() const { return static_cast<int>(options_.blocks.size()); }
  int64_t device_bytes() const { return resident_region_.bytes() + window_region_.bytes(); }

 private:
  struct Slot {
    std::byte* data = nullptr;
    int block = -1;        // -1: empty
    int leases = 0;        // out now
    bool dirty = false;    // newer than the home
    int64_t last_use = 0;  // order of use, for choosing whom to evict
    Event loaded;          // its copy has arrived
    Event used;            // the last kernel that touched it is done
    Event written;         // its last copy to the home is done
  };

  bool in_place() const { return options_.home_place == Place::device; }
  bool is_resident(int block) const { return block < options_.resident; }
  bool has_home(int block) const { return !(options_.homeless && is_resident(block)); }
  std::span<Slot> window() { return std::span(slots_).last(static_cast<size_t>(options_.slots)); }
  bool committed(int block) const;  // the memory of the block's slot
  void invalidate(std::span<Slot> slots);
  Slot* find(int block);
  Slot* claim(int block);  // a free slot for the block; null when all are leased
  void load(Slot& slot, int block);
  void write_back(Slot& slot);
  void release(Slot& slot, Access access, Stream& compute) noexcept;
  void throw_failure();

  CopyStreams* copies_;
  Ledger* ledger_;  // where copies are noted
  BlockStoreOptions options_;
  Region resident_region_;
  Region window_region_;
  std::vector<Slot> slots_;          // resident blocks' by number, then the window's
  std::vector<Event> home_written_;  // [blocks]: the block's last copy to the home is done
  int64_t uses_ = 0;
  std::exception_ptr failure_;  // of a release, which cannot throw: thrown by what comes next
};

/// The right to use a block; given back at the end of its scope.
class BlockStore::Lease {
 public:
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&&) = delete;
  ~Lease();
  std::byte* data() const { return data_; }

 private:
  friend class BlockStore;
  Lease(BlockStore* store, Slot* slot, std::byte* data, Access access, Stream* compute)
      : store_(store), slot_(slot), data_(data), access_(access), compute_(compute) {}

  BlockStore* store_;
  Slot* slot_;  // null: in place, or moved from
  std::byte* data_;
  Access access_;
  Stream* compute_;
};

}  // namespace miles
