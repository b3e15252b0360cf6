// The merge list of a BPE model as a hash table: (left id, right id) -> (rank, merged id).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace miles {

struct Merge {
  int32_t rank = 0;    // place in the merge list: lower is merged first
  int32_t merged = 0;  // id of the joined token
};

/// Open addressing with linear probing, at most half full.
class MergeTable {
 public:
  MergeTable() : MergeTable(0) {}
  /// Room for `merges` entries.
  explicit MergeTable(size_t merges);

  /// A pair that is set twice has the later merge.
  void set(int32_t left, int32_t right, Merge merge);

  /// Null where the pair does not merge.
  const Merge* find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // ids are not negative
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;  // a power of two
  int shift_ = 0;            // of the 64-bit hash, to a slot
};

}  // namespace miles
