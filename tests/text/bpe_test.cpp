#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>

#include "text/merge_table.h"

namespace miles {
namespace {

using Ids = std::vector<int32_t>;

Ids encode(const Bpe& bpe, std::string_view word) {
  Ids ids;
  bpe.encode(word, ids);
  Ids again;
  bpe.encode(word, again);
  EXPECT_EQ(ids, again) << "from the cache";
  return ids;
}

TEST(Bpe, TheLowestRankIsMergedFirstThenTheLeftmost) {
  const Bpe bpe(
      {.tokens = {"a", "b", "c", "bc", "ab", "aa"}, .merges = {{"b", "c"}, {"a", "b"}, {"a", "a"}}},
      "test");
  EXPECT_EQ(encode(bpe, "abc"), (Ids{0, 3}));
  EXPECT_EQ(encode(bpe, "abab"), (Ids{4, 4}));
  EXPECT_EQ(encode(bpe, "aaa"), (Ids{5, 0}));
  EXPECT_EQ(encode(bpe, ""), Ids{});
}

/// The definition, by looking at every pair each time.
Ids merge_slowly(const std::vector<std::string>& tokens,
                 const std::vector<std::pair<std::string, std::string>>& merges,
                 const std::string& word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (;;) {
    size_t best_rank = merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      for (size_t rank = 0; rank < best_rank; ++rank)
        if (merges[rank] == std::pair(parts[i], parts[i + 1])) best_rank = rank, best = i;
    if (best_rank == merges.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& part : parts)
    ids.push_back(
        static_cast<int32_t>(std::find(tokens.begin(), tokens.end(), part) - tokens.begin()));
  return ids;
}

TEST(Bpe, TheHeapGivesWhatTheDefinitionGives) {
  const std::vector<std::string> tokens = {"a", "b", "c", "ab", "bc", "abc", "ca", "aa", "aab"};
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"a", "b"}, {"b", "c"}, {"c", "a"}, {"a", "a"}, {"ab", "c"}, {"a", "ab"}};
  const Bpe bpe({.tokens = tokens, .merges = merges}, "test");
  for (int n = 0; n < 6561; ++n) {
    std::string word;
    for (int rest = n; rest > 0; rest /= 3) word += static_cast<char>('a' + rest % 3);
    ASSERT_EQ(encode(bpe, word), merge_slowly(tokens, merges, word)) << word;
  }
}

TEST(Bpe, UnknownCharactersAreDroppedReplacedOrFused) {
  const std::vector<std::string> tokens = {"<unk>", "a"};
  EXPECT_EQ(encode(Bpe({.tokens = tokens}, "test"), "xaéé"), (Ids{1}));
  EXPECT_EQ(encode(Bpe({.tokens = tokens, .unknown = "<unk>"}, "test"), "xaéé"), (Ids{0, 1, 0, 0}));
  EXPECT_EQ(
      encode(Bpe({.tokens = tokens, .unknown = "<unk>", .fuse_unknown = true}, "test"), "xaéé"),
      (Ids{0, 1, 0}));
}

TEST(Bpe, ByteFallbackNeedsAllBytesOfACharacter) {
  const Bpe bpe(
      {.tokens = {"<unk>", "<0xC3>", "<0xA9>"}, .unknown = "<unk>", .byte_fallback = true}, "test");
  EXPECT_EQ(encode(bpe, "é"), (Ids{1, 2}));
  EXPECT_EQ(encode(bpe, "è"), (Ids{0})) << "there is no <0xA8>";
}

TEST(Bpe, PrefixAndSuffixDressCharacters) {
  const Bpe prefixed({.tokens = {"a", "##b", "##c", "ab", "abc"},
                      .merges = {{"a", "##b"}, {"ab", "##c"}},
                      .continuing_prefix = "##"},
                     "test");
  EXPECT_EQ(encode(prefixed, "abc"), (Ids{4}));
  const Bpe suffixed(
      {.tokens = {"a", "b</w>", "ab</w>"}, .merges = {{"a", "b</w>"}}, .word_suffix = "</w>"},
      "test");
  EXPECT_EQ(encode(suffixed, "aab"), (Ids{0, 2}));
}

TEST(MergeTable, FindsWhatWasSetAndNothingElse) {
  MergeTable table(2000);
  for (int32_t i = 0; i < 2000; ++i) table.set(i, 7 * i % 1999, {i, i + 1});
  table.set(5, 35, {99, 98});
  for (int32_t i = 0; i < 2000; ++i) {
    const Merge* merge = table.find(i, 7 * i % 1999);
    ASSERT_NE(merge, nullptr);
    EXPECT_EQ(merge->rank, i == 5 ? 99 : i) << "the later of two counts";
    EXPECT_EQ(table.find(i, 2000), nullptr);
  }
  EXPECT_EQ(MergeTable().find(0, 0), nullptr);
}

TEST(WordCache, IsBoundedAndForgetsWholeShards) {
  WordCache cache;
  const Ids ids = {1, 2, 3};
  for (int i = 0; i < 200'000; ++i)
    cache.remember(std::to_string(i), ids.data(), ids.data() + ids.size());
  size_t known = 0;
  for (int i = 0; i < 200'000; ++i) {
    Ids found = {0};
    if (!cache.find(std::to_string(i), found)) continue;
    ++known;
    ASSERT_EQ(found, (Ids{0, 1, 2, 3})) << "appends";
  }
  EXPECT_LE(known, 16u * 4096u);
  EXPECT_GT(known, 0u);
  const std::string longest(WordCache::kLongestWord + 1, 'a');
  cache.remember(longest, ids.data(), ids.data() + 1);
  Ids none;
  EXPECT_FALSE(cache.find(longest, none));
}

}  // namespace
}  // namespace miles
