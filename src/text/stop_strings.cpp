#include "text/stop_strings.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace miles {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& string : strings_) {
    if (string.empty())
      fail(ErrorCode::flags, "a stop string is empty; it would stop before the first token");
    if (!is_valid_utf8(string))
      fail(ErrorCode::flags, "the stop string '{}' is not UTF-8; no text would ever hold it",
           repair_utf8(string));
    longest_ = std::max(longest_, string.size());
  }
}

std::optional<StopMatch> StopStrings::scan(std::string_view text) {
  MILES_CHECK(text.size() >= scanned_, "the text shrank from {} to {} bytes", scanned_,
              text.size());
  std::optional<StopMatch> best;
  for (size_t which = 0; which < strings_.size(); ++which) {
    const std::string& string = strings_[which];
    // A new match ends in the new part.
    const size_t from = scanned_ - std::min(scanned_, string.size() - 1);
    const size_t begin = text.find(string, from);
    if (begin == std::string_view::npos) continue;
    const StopMatch match{begin, begin + string.size(), which};
    if (!best || match.end < best->end || (match.end == best->end && match.begin < best->begin))
      best = match;
  }
  if (!best) scanned_ = text.size();
  return best;
}

size_t StopStrings::safe_length(std::string_view text) const {
  size_t begin = text.size() - std::min(text.size(), longest_ - std::min<size_t>(longest_, 1));
  for (; begin < text.size(); ++begin) {
    const std::string_view end = text.substr(begin);
    if (std::ranges::any_of(strings_, [&](const std::string& s) {
          return s.size() > end.size() && s.starts_with(end);
        }))
      return begin;
  }
  return text.size();
}

}  // namespace miles
