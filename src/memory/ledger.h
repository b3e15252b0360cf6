// The ledger: every byte that the program takes from the device or the host's pool is written here
// under a tag, before it is taken, and refused when it would pass the budget.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

namespace miles {

enum class Place { device, host };

std::string_view name_of(Place place);

/// What may be used, in bytes.
struct MemoryBudget {
  int64_t device_bytes = INT64_MAX;
  int64_t host_bytes = INT64_MAX;
};

/// Bytes per tag; a tag that holds nothing is absent.
using TagBytes = std::map<std::string, int64_t>;

/// What is used at one place, in bytes.
struct PlaceUsage {
  TagBytes by_tag;
  int64_t total = 0;       // their sum
  int64_t event_peak = 0;  // largest total since begin_event()
  TagBytes at_event_peak;  // its tags
  int64_t peak = 0;        // largest total ever
  int64_t arrived = 0;     // copied here from the other place since begin_event()
};

/// Not for several threads: memory comes and goes on the main thread only.
class Ledger {
 public:
  explicit Ledger(MemoryBudget budget = {}) : budget_(budget) {}

  /// Books `bytes`. Throws Error{budget} that names asked, free, budget and the largest tags; then
  /// nothing has changed.
  void take(Place place, const std::string& tag, int64_t bytes);
  void give_back(Place place, const std::string& tag, int64_t bytes);

  /// Notes a copy between the places, `to` its target: what a handoff moves.
  void copied(Place to, int64_t bytes) { usage_[index(to)].arrived += bytes; }

  /// Peaks of both places start again from what is used now, and arrivals from nothing.
  void begin_event();

  const PlaceUsage& usage(Place place) const { return usage_[index(place)]; }
  int64_t budget(Place place) const {
    return place == Place::device ? budget_.device_bytes : budget_.host_bytes;
  }

 private:
  static size_t index(Place place) { return static_cast<size_t>(place); }

  MemoryBudget budget_;
  std::array<PlaceUsage, 2> usage_;
};

/// "actor.params 1.1 GiB, store.optimizer 812.0 MiB": the largest tags, at most `most`.
std::string largest_tags(const TagBytes& tags, size_t most = 4);

}  // namespace miles
