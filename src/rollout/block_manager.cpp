#include "rollout/block_manager.h"

#include <algorithm>

#include "base/error.h"

namespace miles {

BlockManager::BlockManager(int64_t pages, int64_t page_size)
    : page_size_(page_size), references_(static_cast<size_t>(pages), 0) {
  MILES_CHECK(page_size > 0, "{} pages of {} tokens", pages, page_size);
  free_.reserve(references_.size());
  for (int64_t page = pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

int64_t BlockManager::pages_to_write(const PageTable& table, int64_t first, int64_t end) const {
  if (first >= end) return 0;
  const auto held = static_cast<int64_t>(table.size());
  const int64_t needed = pages_for(end);
  int64_t count = std::max<int64_t>(0, needed - held);
  for (int64_t i = first / page_size_; i < std::min(held, needed); ++i)
    if (references(table[static_cast<size_t>(i)]) > 1) ++count;
  return count;
}

bool BlockManager::make_writable(PageTable& table, int64_t first, int64_t end,
                                 std::vector<PageCopy>& copies) {
  if (pages_to_write(table, first, end) > free_pages()) return false;
  if (first >= end) return true;
  const auto needed = static_cast<size_t>(pages_for(end));
  for (auto i = static_cast<size_t>(first / page_size_); i < std::min(table.size(), needed); ++i) {
    if (references(table[i]) == 1) continue;
    const int32_t copy = take();
    copies.push_back({.from = table[i], .to = copy});
    drop(table[i]);
    table[i] = copy;
  }
  while (table.size() < needed) table.push_back(take());
  return true;
}

PageTable BlockManager::share(const PageTable& table, int64_t tokens) {
  const int64_t count = pages_for(tokens);
  MILES_CHECK(count <= static_cast<int64_t>(table.size()), "{} tokens shared of {} pages", tokens,
              table.size());
  PageTable shared(table.begin(), table.begin() + count);
  for (const int32_t page : shared) ++references_[static_cast<size_t>(page)];
  return shared;
}

void BlockManager::release(PageTable& table) {
  for (const int32_t page : table) drop(page);
  table.clear();
}

int32_t BlockManager::take() {
  MILES_CHECK(!free_.empty(), "no page left of {}", pages());
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void BlockManager::drop(int32_t page) {
  int32_t& count = references_[static_cast<size_t>(page)];
  MILES_CHECK(count > 0, "page {} given back twice", page);
  if (--count == 0) free_.push_back(page);
}

}  // namespace miles
