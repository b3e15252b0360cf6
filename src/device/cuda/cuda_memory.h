// The two kinds of memory of a CUDA device: its own, mapped in chunks behind addresses that stay,
// and the host's, pinned while it is committed.
#pragma once

#include <map>
#include <vector>

#include "device/anonymous_memory.h"
#include "device/cuda/driver.h"

namespace miles::cuda {

/// Device memory by CUDA's virtual memory management. Large chunks: mapping 32 GiB took 0.007 s in
/// chunks of 256 MiB and 0.65 s and more in chunks of 2 MiB (H200).
class VirtualMemory : public AddressSpace {
 public:
  explicit VirtualMemory(int device);
  int64_t granularity() const override { return granularity_; }
  std::byte* reserve(int64_t bytes) override;
  void unreserve(std::byte* base, int64_t bytes) noexcept override;
  void commit(std::byte* base, int64_t bytes) override;
  void decommit(std::byte* base, int64_t bytes) noexcept override;
  /// What the driver is given back it clears with the copy engines: after 48 GiB copies run at half
  /// their rate for 0.15 s (H200).
  void begin_exchange() override { exchanging_ = true; }
  void end_exchange() noexcept override;
  int64_t held_bytes() const { return held_bytes_; }  // committed, or between two owners
  int64_t unowned_bytes() const;

 private:
  /// Memory that stands behind a part of a range.
  struct Chunk {
    CUmemGenericAllocationHandle handle;
    int64_t bytes;
  };
  Chunk map_chunk(std::byte* at, int64_t bytes);
  /// One that nobody has, or a new one; then as much of the others, or all, goes to the driver.
  Chunk take_chunk(int64_t bytes);
  void give_back(const Chunk& chunk) noexcept;

  CUmemAllocationProp properties_{};
  int64_t granularity_ = 0;                             // bytes
  int64_t held_bytes_ = 0;                              // in all chunks
  std::map<std::byte*, std::vector<Chunk>> committed_;  // by the start of what was committed
  bool exchanging_ = false;
  std::vector<Chunk> unowned_;  // while exchanging: between two owners; has room for all chunks
  size_t chunks_ = 0;           // that there are
};

/// Host memory that the device's copies reach at full speed.
class PinnedMemory : public AnonymousMemory {
 public:
  void commit(std::byte* base, int64_t bytes) override;
  void decommit(std::byte* base, int64_t bytes) noexcept override;
};

}  // namespace miles::cuda
