// A pattern that splits or replaces text: a literal string or a regular expression, as
// tokenizer.json writes it, {"String": "…"} or {"Regex": "…"}.
//
// Expressions are Oniguruma's in the original; PCRE2 runs them here, with Unicode properties. The
// two read the expressions of published tokenizers alike; \s, \p{L} and \p{N} mean here what they
// mean there, those of Unicode 16, whatever PCRE2 knows.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace miles {

/// A stretch of a text: bytes [begin, end).
struct TextSpan {
  size_t begin = 0;  // bytes
  size_t end = 0;    // bytes
};

/// Immutable; may be used by several threads at once. Copies share the compiled expression.
class TextPattern {
 public:
  static TextPattern literal(std::string text);
  /// Throws Error{data} "where: …" when `expression` does not compile.
  static TextPattern regex(const std::string& expression, const std::string& where);
  /// From {"String": …} or {"Regex": …}. Throws Error{data} otherwise.
  static TextPattern from_json(const nlohmann::json& pattern, const std::string& where);

  /// All matches in `text` (valid UTF-8), left to right, not overlapping. An empty match counts
  /// unless it touches the match before it.
  std::vector<TextSpan> find_all(std::string_view text) const;

  /// `text` with every match replaced.
  std::string replace_all(std::string_view text, std::string_view replacement) const;

 private:
  struct Compiled;  // PCRE2's code
  TextPattern() = default;
  std::vector<TextSpan> find_literal(std::string_view text) const;
  std::vector<TextSpan> find_regex(std::string_view text) const;

  std::string literal_;                       // when there is no expression
  std::shared_ptr<const Compiled> compiled_;  // null: a literal
};

}  // namespace miles
