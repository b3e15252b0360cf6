// Pages of the key/value cache: who holds which. Reference counts let sequences share the pages of
// a common prompt; whoever writes to a shared page gets a copy first. Pure bookkeeping: no device.
// Source: Kwon et al. 2023, "Efficient memory management for large language model serving with
// PagedAttention" (arXiv:2309.06180), §4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace miles {

/// Pages of one holder, in token order: position p lies in page table[p / page_size].
using PageTable = std::vector<int32_t>;

/// Keys and values of `from` are to be copied to `to`, in the order the copies are listed, before
/// anything is written to either.
struct PageCopy {
  int32_t from = 0;  // page
  int32_t to = 0;    // page
};

class BlockManager {
 public:
  BlockManager(int64_t pages, int64_t page_size);

  int64_t page_size() const { return page_size_; }  // tokens
  int64_t pages() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t pages_for(int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }
  int64_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }

  /// Free pages that make_writable() would take.
  int64_t pages_to_write(const PageTable& table, int64_t first, int64_t end) const;

  /// Makes positions [first, end) writable for the holder of `table`: appends pages up to `end`,
  /// and replaces pages that others hold too by fresh ones, adding what must be copied to `copies`.
  /// Returns false, and has changed nothing, when the free pages do not suffice.
  bool make_writable(PageTable& table, int64_t first, int64_t end, std::vector<PageCopy>& copies);

  /// A table of the pages that hold the first `tokens` positions of `table`, each now held once
  /// more.
  PageTable share(const PageTable& table, int64_t tokens);

  /// Gives all pages of `table` back and empties it.
  void release(PageTable& table);

 private:
  int32_t take();
  void drop(int32_t page);

  int64_t page_size_;
  std::vector<int32_t> references_;  // [pages] holders of each page; 0: free
  std::vector<int32_t> free_;        // a stack; the last is taken next
};

}  // namespace miles
