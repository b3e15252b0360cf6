#include "rollout/block_manager.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"

namespace miles {
namespace {

TEST(BlockManager, TakesPagesOnlyAsTokensNeedThem) {
  BlockManager blocks(4, 3);
  PageTable table;
  std::vector<PageCopy> copies;
  EXPECT_TRUE(blocks.make_writable(table, 0, 3, copies));
  EXPECT_EQ(table.size(), 1U);
  EXPECT_TRUE(blocks.make_writable(table, 3, 4, copies));
  EXPECT_EQ(table.size(), 2U);
  EXPECT_TRUE(blocks.make_writable(table, 4, 6, copies));
  EXPECT_EQ(table.size(), 2U);
  EXPECT_EQ(blocks.free_pages(), 2);
  EXPECT_TRUE(copies.empty());
  blocks.release(table);
  EXPECT_EQ(blocks.free_pages(), 4);
}

TEST(BlockManager, ChangesNothingWhenPagesDoNotSuffice) {
  BlockManager blocks(2, 2);
  PageTable table;
  std::vector<PageCopy> copies;
  ASSERT_TRUE(blocks.make_writable(table, 0, 2, copies));
  const PageTable before = table;
  EXPECT_FALSE(blocks.make_writable(table, 2, 7, copies));
  EXPECT_EQ(table, before);
  EXPECT_EQ(blocks.free_pages(), 1);
}

TEST(BlockManager, CopiesASharedPageWhenItIsWrittenAndOnlyThen) {
  BlockManager blocks(8, 4);
  PageTable a;
  std::vector<PageCopy> copies;
  ASSERT_TRUE(blocks.make_writable(a, 0, 6, copies));
  PageTable b = blocks.share(a, 6);
  EXPECT_EQ(a, b);
  EXPECT_EQ(blocks.free_pages(), 6);
  // A write behind the shared pages copies nothing.
  EXPECT_EQ(blocks.pages_to_write(b, 8, 9), 1);
  ASSERT_TRUE(blocks.make_writable(b, 8, 9, copies));
  EXPECT_TRUE(copies.empty());
  // A write into the half-full shared page copies that page and no other.
  EXPECT_EQ(blocks.pages_to_write(b, 6, 7), 1);
  ASSERT_TRUE(blocks.make_writable(b, 6, 7, copies));
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].from, a[1]);
  EXPECT_EQ(copies[0].to, b[1]);
  EXPECT_EQ(a[0], b[0]);
  EXPECT_NE(a[1], b[1]);
  // The other holder has the page for itself now.
  ASSERT_TRUE(blocks.make_writable(a, 6, 7, copies));
  EXPECT_EQ(copies.size(), 1U);
  blocks.release(a);
  blocks.release(b);
  EXPECT_EQ(blocks.free_pages(), 8);
}

TEST(BlockManager, SharesOnlyThePagesOfTheTokensAskedFor) {
  BlockManager blocks(8, 4);
  PageTable a;
  std::vector<PageCopy> copies;
  ASSERT_TRUE(blocks.make_writable(a, 0, 12, copies));
  PageTable b = blocks.share(a, 5);
  EXPECT_EQ(b.size(), 2U);
  EXPECT_EQ(blocks.references(a[2]), 1);
  PageTable none = blocks.share(a, 0);
  EXPECT_TRUE(none.empty());
  blocks.release(b);
  blocks.release(a);
}

TEST(BlockManager, APageGivenBackTwiceIsOurBug) {
  BlockManager blocks(2, 1);
  PageTable a;
  std::vector<PageCopy> copies;
  ASSERT_TRUE(blocks.make_writable(a, 0, 1, copies));
  PageTable again = a;
  blocks.release(a);
  EXPECT_DEATH(blocks.release(again), "given back twice");
}

/// What the tables hold, counted anew, must be what the manager believes.
void expect_consistent(const BlockManager& blocks, const std::vector<PageTable>& tables) {
  std::map<int32_t, int64_t> holders;
  for (const PageTable& table : tables)
    for (const int32_t page : table) ++holders[page];
  int64_t held = 0;
  for (int32_t page = 0; page < blocks.pages(); ++page) {
    ASSERT_EQ(blocks.references(page), holders[page]) << "page " << page;
    held += holders[page] > 0 ? 1 : 0;
  }
  ASSERT_EQ(blocks.free_pages(), blocks.pages() - held);
}

TEST(BlockManager, LosesNoPageInAnyOrderOfSharingWritingAndReleasing) {
  for (uint64_t trial = 0; trial < 20; ++trial) {
    uint64_t counter = 0;
    const auto draw = [&](uint64_t bound) {
      return uniform_below(bound, 11, RngUse::test, trial, counter++);
    };
    BlockManager blocks(static_cast<int64_t>(1 + draw(30)), static_cast<int64_t>(1 + draw(5)));
    std::vector<PageTable> tables(6);
    std::vector<PageCopy> copies;
    for (int i = 0; i < 300; ++i) {
      PageTable& table = tables[draw(tables.size())];
      const int64_t tokens = static_cast<int64_t>(table.size()) * blocks.page_size();
      const auto choice = draw(4);
      if (choice == 0) {
        blocks.release(table);
      } else if (choice == 1) {
        PageTable& other = tables[draw(tables.size())];
        if (!table.empty() && other.empty())
          other = blocks.share(table, static_cast<int64_t>(draw(static_cast<uint64_t>(tokens))));
      } else {
        const auto first = static_cast<int64_t>(draw(static_cast<uint64_t>(tokens) + 1));
        const auto end = first + static_cast<int64_t>(draw(9));
        const int64_t needed = blocks.pages_to_write(table, first, end);
        const int64_t before = blocks.free_pages();
        const bool fits = blocks.make_writable(table, first, end, copies);
        ASSERT_EQ(fits, needed <= before);
        ASSERT_EQ(blocks.free_pages(), fits ? before - needed : before);
      }
      expect_consistent(blocks, tables);
    }
    for (PageTable& table : tables) blocks.release(table);
    EXPECT_EQ(blocks.free_pages(), blocks.pages());
  }
}

}  // namespace
}  // namespace miles
