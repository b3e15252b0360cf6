// A bounded cache from words to their token ids: most words of a text have been seen before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace miles {

/// Safe for several threads at once. Holds at most kShards * kWordsPerShard words of at most
/// kLongestWord bytes: some 30 MB at the very most, whatever it is fed.
class WordCache {
 public:
  static constexpr size_t kLongestWord = 64;  // bytes

  /// Appends the word's ids and returns true where the word is known.
  bool find(std::string_view word, std::vector<int32_t>& ids) const;

  /// Remembers `ids` [begin, end) for the word; does nothing for long words.
  void remember(std::string_view word, const int32_t* begin, const int32_t* end);

 private:
  static constexpr size_t kShards = 16;
  static constexpr size_t kWordsPerShard = 4096;

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> words;
  };
  static size_t shard_of(std::string_view word) { return Hash()(word) >> 7 & (kShards - 1); }

  std::array<Shard, kShards> shards_;
};

}  // namespace miles
