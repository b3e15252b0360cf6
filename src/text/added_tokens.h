// Added tokens: strings that are found in a text before anything else and become one token each,
// such
// as "<|im_start|>". The "special" ones are control tokens that decoding may leave out.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/text_normalizer.h"
#include "text/text_pattern.h"

namespace miles {

struct AddedToken {
  int32_t id = 0;
  std::string content;       // never empty
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for, normalized, in the normalized text
  bool special = false;
  std::string pattern = {};  // `content`, normalized where `normalized`: what is looked for
};

/// A stretch of a text: an added token, or what is between two.
struct AddedSplit {
  TextSpan span;              // bytes
  std::optional<int32_t> id;  // of the added token
};

/// Immutable; may be used by several threads at once.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Throws Error{data} "where: …" when two tokens share an id or a content.
  AddedTokens(std::vector<AddedToken> tokens, const TextNormalizer& normalizer,
              const std::string& where);

  /// `added`: the array "added_tokens" of tokenizer.json, or null.
  static std::vector<AddedToken> read(const nlohmann::json* added, const std::string& where);

  /// Splits a text as it was given, by the tokens that are not `normalized`. The leftmost token
  /// wins, the longest of those that start together.
  std::vector<AddedSplit> split_raw(std::string_view text) const { return raw_.split(text); }
  /// Splits a normalized text, by the others.
  std::vector<AddedSplit> split_normalized(std::string_view text) const {
    return normalized_.split(text);
  }

  const AddedToken* find(int32_t id) const;
  const AddedToken* find(std::string_view content) const;
  const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  /// Finds tokens by a trie over bytes.
  class Matcher {
   public:
    void add(const AddedToken& token);
    std::vector<AddedSplit> split(std::string_view text) const;

   private:
    struct Node {
      std::vector<std::pair<char, int32_t>> next;  // byte, index of the node
      int32_t token = -1;                          // index of the token that ends here
    };
    struct Found {
      int32_t token = -1;  // -1: none
      size_t length = 0;   // bytes
    };
    int32_t child(int32_t node, char byte) const;
    Found longest_at(std::string_view text, size_t at) const;

    std::vector<Node> nodes_ = std::vector<Node>(1);
    std::array<bool, 256> starts_{};  // bytes with which a pattern starts
    std::vector<AddedToken> tokens_;
  };

  std::vector<AddedToken> tokens_;
  std::unordered_map<int32_t, size_t> by_id_;           // index into tokens_
  std::unordered_map<std::string, size_t> by_content_;  // index into tokens_
  Matcher raw_;
  Matcher normalized_;
};

}  // namespace miles
