// UTF-8: reading code points, repairing what is not UTF-8, and doing so on text that comes in
// parts.
//
// Repair follows Unicode 15, section 3.9, "Substitution of Maximal Subparts": the longest prefix of
// a well-formed sequence that ends too early becomes one U+FFFD, and so does every other stray
// byte. Rust's String::from_utf8_lossy and Python's errors="replace" give the same text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace miles {

/// What the bytes at a position are.
struct Utf8Step {
  enum class Kind {
    character,  // a whole character
    invalid,    // a maximal ill-formed sequence
    truncated,  // a well-formed start, cut off by the end of the text
  };
  Kind kind = Kind::invalid;
  size_t length = 0;        // bytes, at least 1
  char32_t code_point = 0;  // of a character; U+FFFD otherwise
};

/// Reads the bytes at `text[at]`; `at` < text.size().
Utf8Step utf8_step(std::string_view text, size_t at);

/// The code point at `text[at]` of valid UTF-8.
char32_t code_point_at(std::string_view text, size_t at);

/// The byte where the character that ends at `text[end]` starts; `text` is valid UTF-8, `end` > 0.
size_t previous_character(std::string_view text, size_t end);

void append_utf8(char32_t code_point, std::string& out);

bool is_valid_utf8(std::string_view text);

/// `text` with each maximal invalid sequence replaced by U+FFFD.
std::string repair_utf8(std::string_view text);

/// The Unicode property White_Space.
bool is_white_space(char32_t code_point);

/// Whether the character counts as part of a word: letters, marks, decimal digits, letter numbers,
/// connectors and joiners (Unicode Technical Standard 18, annex C, \w).
bool is_word_character(char32_t code_point);

/// Repairs bytes that come in parts: never emits half a character, and the concatenation of all
/// that it emits is repair_utf8 of the concatenation of all that it was given.
class Utf8Repair {
 public:
  /// Appends to `out` what is now decided; holds back at most 3 bytes.
  void push(std::string_view bytes, std::string& out);
  /// Appends what was held back (as U+FFFD); then ready for a new text.
  void finish(std::string& out);

 private:
  std::string pending_;  // a well-formed start of a character
};

}  // namespace miles
