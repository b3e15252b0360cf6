#include "memory/ledger.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace miles {

std::string_view name_of(Place place) {
  return place == Place::device ? "device" : "host";
}

void Ledger::take(Place place, const std::string& tag, int64_t bytes) {
  MILES_CHECK(bytes >= 0, "{} bytes of {}", bytes, tag);
  PlaceUsage& usage = usage_[index(place)];
  const int64_t limit = budget(place);
  if (bytes > limit - usage.total)
    fail(ErrorCode::budget,
         "{} memory: {} needs {} ({} bytes), but {} of the {} budget ({} bytes) are free; largest: "
         "{}. "
         "Raise {} or make the job smaller",
         name_of(place), tag, format_bytes(bytes), bytes, format_bytes(limit - usage.total),
         format_bytes(limit), limit, largest_tags(usage.by_tag),
         place == Place::device ? "--gpu-memory-budget" : "--host-memory-budget");
  usage.by_tag[tag] += bytes;
  usage.total += bytes;
  if (usage.total > usage.event_peak) {
    usage.event_peak = usage.total;
    usage.at_event_peak = usage.by_tag;
  }
  usage.peak = std::max(usage.peak, usage.total);
}

void Ledger::give_back(Place place, const std::string& tag, int64_t bytes) {
  PlaceUsage& usage = usage_[index(place)];
  const auto entry = usage.by_tag.find(tag);
  MILES_CHECK(entry != usage.by_tag.end() && entry->second >= bytes, "{} bytes of {} given back",
              bytes, tag);
  entry->second -= bytes;
  if (entry->second == 0) usage.by_tag.erase(entry);
  usage.total -= bytes;
}

void Ledger::begin_event() {
  for (PlaceUsage& usage : usage_) {
    usage.event_peak = usage.total;
    usage.at_event_peak = usage.by_tag;
    usage.arrived = 0;
  }
}

std::string largest_tags(const TagBytes& tags, size_t most) {
  std::vector<std::pair<std::string, int64_t>> sorted(tags.begin(), tags.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> words;
  for (const auto& [tag, bytes] : sorted) {
    if (words.size() == most) break;
    words.push_back(fmt::format("{} {}", tag, format_bytes(bytes)));
  }
  return words.empty() ? "nothing is held" : fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace miles
