// The pre-tokenizer of a tokenizer.json: how a normalized text is cut into words, within which BPE
// merges. Supported: Sequence, Split, ByteLevel, Metaspace, Digits, WhitespaceSplit.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/text_pattern.h"

namespace miles {

/// What becomes of the matches of a splitting pattern.
enum class SplitBehavior { removed, isolated, contiguous, merged_with_previous, merged_with_next };

/// A text and its words, in order. Words do not overlap and none is empty.
struct WordSplit {
  std::string text;             // valid UTF-8
  std::vector<TextSpan> words;  // bytes of `text`
  bool at_start = false;        // the first word starts where the whole input starts

  std::string_view word(size_t i) const {
    return std::string_view(text).substr(words[i].begin, words[i].end - words[i].begin);
  }
};

/// Immutable; may be used by several threads at once.
class PreTokenizer {
 public:
  /// Leaves the text whole.
  PreTokenizer() = default;

  /// `pre_tokenizer`: the value in tokenizer.json, null for none; `where`: its place, for messages.
  /// Throws Error{data} naming a type or behaviour that is not supported.
  static PreTokenizer from_json(const nlohmann::json& pre_tokenizer, const std::string& where);

  /// `at_start`: whether `text` starts where the whole input starts (Metaspace's "first").
  WordSplit apply(std::string text, bool at_start) const;

 private:
  struct Split {
    TextPattern pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;  // the pattern describes the words, not what is between them
  };
  struct PrefixSpace {};        // a space before each word that has none
  struct BytesToCharacters {};  // the byte-level alphabet (text/byte_level.h)
  enum class PrependScheme { always, first, never };
  struct Metaspace {
    std::string replacement;  // stands for a space
    PrependScheme prepend = PrependScheme::always;
  };
  using Step = std::variant<Split, PrefixSpace, BytesToCharacters, Metaspace>;

  void add(const nlohmann::json& pre_tokenizer, const std::string& where);
  void add_split(const nlohmann::json& split, const std::string& where);
  void add_byte_level(const nlohmann::json& byte_level, const std::string& where);
  void add_metaspace(const nlohmann::json& metaspace, const std::string& where);
  static void run(const Split& step, WordSplit& split);
  static void run(const PrefixSpace& step, WordSplit& split);
  static void run(const BytesToCharacters& step, WordSplit& split);
  static void run(const Metaspace& step, WordSplit& split);

  std::vector<Step> steps_;
};

}  // namespace miles
