// Stop strings: where a growing text ends, and how much of it may be shown before that is known.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace miles {

/// A stop string that is complete.
struct StopMatch {
  size_t begin = 0;  // byte where it starts: trim the text here
  size_t end = 0;    // byte after it
  size_t which = 0;  // index of the stop string
};

/// Looks for stop strings in one growing text. The match is the one that a reader who takes the
/// text byte by byte would meet first; of several that end together, the longest. So it does not
/// depend on how the text was cut into tokens.
class StopStrings {
 public:
  /// Throws Error{flags} for an empty string or one that is not UTF-8: it could never be met.
  explicit StopStrings(std::vector<std::string> strings);

  /// Looks at what is new in `text`, which must start with the text of the call before.
  std::optional<StopMatch> scan(std::string_view text);

  /// How many bytes of `text` can be shown: all but the longest end that may become a stop string.
  /// Never within a UTF-8 character when `text` is whole.
  size_t safe_length(std::string_view text) const;

  const std::string& string(size_t which) const { return strings_[which]; }

 private:
  std::vector<std::string> strings_;
  size_t longest_ = 0;  // bytes
  size_t scanned_ = 0;  // bytes of the text that hold no match
};

}  // namespace miles
