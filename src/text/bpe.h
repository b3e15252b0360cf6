// Byte-pair encoding: a word becomes its characters, then the neighbouring pair of the lowest rank
// is merged, the leftmost of equals first, until no pair of the merge list is left. Source:
// Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units"; the details
// (unknown characters, byte fallback, ignore_merges) are those of Hugging Face's "BPE" model.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/merge_table.h"
#include "text/word_cache.h"

namespace miles {

/// Everything that a BPE model consists of; see `Bpe::from_json`.
struct BpeParts {
  std::vector<std::string> tokens = {};  // [ids] text of each id; empty where there is no such id
  std::vector<std::pair<std::string, std::string>> merges = {};  // in order of rank
  std::string unknown = {};            // token for what the vocabulary lacks; empty: it is dropped
  std::string continuing_prefix = {};  // before every character of a word but the first, e.g. "##"
  std::string word_suffix = {};        // after the last character of a word, e.g. "</w>"
  bool fuse_unknown = false;           // neighbouring unknown characters make one token
  bool byte_fallback = false;          // an unknown character becomes tokens <0x00> … <0xFF>
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
};

/// Immutable but for its cache; may be used by several threads at once.
class Bpe {
 public:
  /// Throws Error{data} "where: …" when a merge or `unknown` names a token that is not there.
  Bpe(BpeParts parts, const std::string& where);

  /// `model`: the value in tokenizer.json. Merges may be "a b" or ["a", "b"].
  /// Throws Error{data} naming a model type that is not BPE, or what is wrong.
  static Bpe from_json(const nlohmann::json& model, const std::string& where);

  /// Appends the ids of a word (valid UTF-8). O(n log n) in its length.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

  std::optional<int32_t> find(std::string_view token) const;
  /// The token's text, or nothing where there is no such id.
  std::optional<std::string_view> text_of(int32_t id) const;
  /// One more than the largest id.
  int32_t size() const { return static_cast<int32_t>(parts_.tokens.size()); }

 private:
  void index_tokens(const std::string& where);
  void index_merges(const std::string& where);
  int32_t id_of(std::string_view token, const std::string& place) const;
  std::vector<int32_t> characters_of(std::string_view word) const;
  std::optional<int32_t> find_character(std::string_view word, size_t at, size_t length) const;
  bool append_bytes(std::string_view text, std::vector<int32_t>& ids) const;
  void merge(std::vector<int32_t>& ids) const;

  BpeParts parts_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views of parts_.tokens
  std::vector<int32_t>
      short_characters_;           // [0x800] ids of the characters of one or two bytes, or -1
  std::vector<int32_t> byte_ids_;  // [256] ids of <0x00> …, or -1
  std::optional<int32_t> unknown_id_;
  MergeTable merges_;
  std::unique_ptr<WordCache> cache_;
};

}  // namespace miles
