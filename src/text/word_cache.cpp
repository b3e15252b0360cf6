#include "text/word_cache.h"

namespace miles {

bool WordCache::find(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > kLongestWord) return false;
  const Shard& shard = shards_[shard_of(word)];
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.words.find(word);
  if (found == shard.words.end()) return false;
  ids.insert(ids.end(), found->second.begin(), found->second.end());
  return true;
}

void WordCache::remember(std::string_view word, const int32_t* begin, const int32_t* end) {
  if (word.size() > kLongestWord) return;
  Shard& shard = shards_[shard_of(word)];
  const std::lock_guard lock(shard.mutex);
  // A full shard starts afresh: common words are back at once, and nothing needs an order of use.
  if (shard.words.size() >= kWordsPerShard) shard.words.clear();
  shard.words.try_emplace(std::string(word), begin, end);
}

}  // namespace miles
