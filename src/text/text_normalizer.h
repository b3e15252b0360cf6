// The normalizer of a tokenizer.json: what happens to a text before it is split into words.
// Supported: Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/text_pattern.h"

namespace miles {

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

/// The text in a normalization form (Unicode Standard Annex 15). `text` is valid UTF-8.
/// O(n log n), whatever the order of combining marks.
std::string normalize_unicode(std::string_view text, UnicodeForm form);

/// Immutable; may be used by several threads at once.
class TextNormalizer {
 public:
  /// Does nothing.
  TextNormalizer() = default;

  /// `normalizer`: the value in tokenizer.json, null for none; `where`: its place, for messages.
  /// Throws Error{data} naming a type that is not supported.
  static TextNormalizer from_json(const nlohmann::json& normalizer, const std::string& where);

  std::string apply(std::string text) const;

 private:
  struct Prepend {
    std::string text;  // put before a text that is not empty
  };
  struct Replace {
    TextPattern pattern;
    std::string replacement;
  };
  using Step = std::variant<UnicodeForm, Prepend, Replace>;

  void add(const nlohmann::json& normalizer, const std::string& where);

  std::vector<Step> steps_;
};

}  // namespace miles
