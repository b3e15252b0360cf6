#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/units.h"
#include "observe/report_charts.h"
#include "observe/statistics.h"
#include "observe/svg_chart.h"

namespace miles {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMostTicks = 120;      // event lines that do not hide what is behind them
constexpr int64_t kDetailRollouts = 3;  // rollouts shown close up
constexpr double kFarBudget = 4;        // a budget beyond this many peaks would flatten the chart
constexpr double kCloseBudget = 1.12;   // one below this many is at the height of the peak's label

/// One of the two memories, and where an event keeps its numbers.
struct Memory {
  const char* name;
  std::map<std::string, int64_t> MemoryEvent::*by_tag;
  int64_t MemoryEvent::*total;
  int64_t MemoryEvent::*peak;
  int64_t MemoryEvent::*budget;
};

constexpr Memory kDevice = {"Device memory", &MemoryEvent::device_bytes, &MemoryEvent::device_total,
                            &MemoryEvent::device_peak, &MemoryEvent::device_budget};
constexpr Memory kHost = {"Host memory", &MemoryEvent::host_bytes, &MemoryEvent::host_total,
                          &MemoryEvent::host_peak, &MemoryEvent::host_budget};

using Events = std::span<const MemoryEvent>;

struct TagColour {
  std::string tag;
  const char* colour;
};

/// From the bottom of the stack to its top: the store, the trainer in blue, the engine in orange,
/// so that taking turns is seen before a legend is read; a tag looks the same in every run. Last,
/// above the peak and the budget that do not count them, what is between two owners and what the
/// driver holds.
constexpr std::pair<const char*, const char*> kColours[] = {
    {"staging", "grey-1"},
    {"store.params", "green-1"},
    {"store.optimizer", "green-0"},
    {"store.grads", "green-2"},
    {"store.activations", "green-3"},
    {"store.reference", "pink-0"},
    {"actor.params", "blue-1"},
    {"actor.optimizer", "blue-0"},
    {"actor.grads", "blue-2"},
    {"actor.activations", "blue-3"},
    {"actor.workspace", "blue-4"},
    {"actor.reference", "pink-0"},
    {"rollout.weights", "orange-0"},
    {"rollout.kv_cache", "orange-1"},
    {"rollout.workspace", "orange-2"},
    {kExchangeTag, "grey-1"},
    {kDriverTag, "grey-3"},
};

/// The tags that ever held something, in that order; below them those that it does not know.
std::vector<TagColour> colours_of(Events events, const Memory& memory) {
  std::set<std::string> tags;
  for (const MemoryEvent& event : events)
    for (const auto& [tag, bytes] : event.*memory.by_tag)
      if (bytes > 0) tags.insert(tag);
  std::vector<TagColour> known;
  for (const auto& [tag, colour] : kColours)
    if (tags.erase(tag) > 0) known.push_back({tag, colour});
  std::vector<TagColour> colours;
  for (const std::string& tag : tags) colours.push_back({tag, "grey-0"});
  colours.insert(colours.end(), known.begin(), known.end());
  return colours;
}

/// Of each range the event that holds most: what a reader must not miss is the height.
std::vector<size_t> fullest(Events events, const std::vector<IndexRange>& ranges,
                            const Memory& memory) {
  std::vector<size_t> chosen;
  for (const IndexRange& range : ranges) {
    size_t best = range.begin;
    for (size_t i = range.begin; i < range.end; ++i)
      if (events[i].*memory.total > events[best].*memory.total) best = i;
    chosen.push_back(best);
  }
  return chosen;
}

/// Peaks drawn where they happened: an event's peak lies in the stretch that ends with it.
std::vector<double> peaks(Events events, const std::vector<IndexRange>& ranges,
                          const Memory& memory) {
  std::vector<double> highest(ranges.size(), kNone);
  for (size_t r = 0; r < ranges.size(); ++r)
    for (size_t i = ranges[r].begin + 1; i <= ranges[r].end && i < events.size(); ++i)
      highest[r] = std::fmax(highest[r], static_cast<double>(events[i].*memory.peak));
  return highest;
}

/// The budget as a dashed line, or in words where drawing it would flatten everything else.
void add_budget(ChartSpec& chart, Events events, const Memory& memory) {
  const int64_t budget = events.back().*memory.budget;
  if (budget <= 0) return;
  int64_t highest = 1;
  for (const MemoryEvent& event : events) highest = std::max(highest, event.*memory.peak);
  if (static_cast<double>(budget) > kFarBudget * static_cast<double>(highest)) {
    chart.caption += fmt::format(" The budget of {} is far above.", format_bytes(budget));
    return;
  }
  chart.series.push_back({fmt::format("budget {}", format_bytes(budget)),
                          "text",
                          Mark::dashed,
                          std::vector<double>(chart.x.size(), static_cast<double>(budget)),
                          {}});
}

void add_tags(ChartSpec& chart, Events events, const std::vector<size_t>& chosen,
              const Memory& memory) {
  for (const auto& [tag, colour] : colours_of(events, memory)) {
    ChartSeries series = {tag, colour, Mark::area, {}, {}};
    for (const size_t i : chosen) {
      const auto found = (events[i].*memory.by_tag).find(tag);
      const bool held = found != (events[i].*memory.by_tag).end();
      series.y.push_back(held ? static_cast<double>(found->second) : 0);
    }
    chart.series.push_back(std::move(series));
  }
}

/// A stretch of the run and how to present it.
struct Stretch {
  Events events;     // not empty
  const char* what;  // end of the title
  const char* from;  // where its clock starts
  double start = 0;  // seconds, that start on the run's clock
};

/// `budget`: bytes, or 0; its line keeps the peak's label off itself.
void add_peaks(ChartSpec& chart, std::vector<double> between, double budget) {
  const double highest = max_of(between);
  if (!(highest > 0)) return;
  const auto at =
      static_cast<size_t>(std::find(between.begin(), between.end(), highest) - between.begin());
  const double end = at + 1 < chart.x.size() ? chart.x[at + 1] : chart.x[at];
  const bool close = budget > highest && budget < kCloseBudget * highest;
  chart.labels.push_back({.x = (chart.x[at] + end) / 2,
                          .y = highest,
                          .text = fmt::format("peak {}", format_quantity(highest, Quantity::bytes)),
                          .below = close});
  chart.series.push_back({"peak", "text", Mark::thin, std::move(between), {}});
}

std::string memory_chart(const Stretch& stretch, const Memory& memory) {
  const Events events = stretch.events;
  ChartSpec chart = {.title = fmt::format("{}, {}", memory.name, stretch.what),
                     .caption =
                         "What each tag holds from one event to the next, at the moment when "
                         "all hold most.",
                     .x_label = fmt::format("time since {}", stretch.from),
                     .y_label = "held",
                     .x_quantity = Quantity::seconds,
                     .y_quantity = Quantity::bytes,
                     .spacing = Spacing::steps,
                     .width = 1130,
                     .height = 290};
  const std::vector<IndexRange> ranges = split_evenly(events.size(), kChartPoints);
  const std::vector<size_t> chosen = fullest(events, ranges, memory);
  for (size_t r = 0; r < ranges.size(); ++r) {
    const MemoryEvent& event = events[chosen[r]];
    chart.x.push_back(events[ranges[r].begin].time - stretch.start);
    chart.x_captions.push_back(fmt::format("after {} of rollout {} ({}), at most {}", event.event,
                                           event.rollout_id, format_seconds(event.seconds),
                                           format_bytes(event.*memory.total)));
  }
  if (events.size() > ranges.size())
    chart.caption += fmt::format(" {} events share {} steps, of which each shows its fullest.",
                                 events.size(), ranges.size());
  add_tags(chart, events, chosen, memory);
  add_peaks(chart, peaks(events, ranges, memory),
            static_cast<double>(events.back().*memory.budget));
  add_budget(chart, events, memory);
  if (events.size() <= kMostTicks)
    for (const MemoryEvent& event : events) chart.ticks.push_back(event.time - stretch.start);
  return svg_chart(chart);
}

/// The run's events behind one that stands for its start. Each holds what its stretch holds at
/// most, which the next one tells: a trainer's memory comes and goes between two events.
std::vector<MemoryEvent> stretches(const std::vector<MemoryEvent>& events) {
  const MemoryEvent& first = events.front();
  std::vector<MemoryEvent> all = {{.event = "the start",
                                   .rollout_id = first.rollout_id,
                                   .time = std::max(0.0, first.time - first.seconds),
                                   .device_budget = first.device_budget,
                                   .host_budget = first.host_budget}};
  all.insert(all.end(), events.begin(), events.end());
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    const MemoryEvent& next = all[i + 1];
    all[i].device_bytes = next.device_at_peak;
    all[i].device_total = next.device_peak;
    all[i].host_bytes = next.host_at_peak;
    all[i].host_total = next.host_peak;
  }
  return all;
}

/// The events of the last rollouts, from the last event before them on.
Events last_rollouts(Events events) {
  const int64_t from = events.back().rollout_id - kDetailRollouts + 1;
  size_t begin = events.size() - 1;
  while (begin > 0 && events[begin - 1].rollout_id >= from) --begin;
  return events.subspan(begin > 0 ? begin - 1 : 0);
}

}  // namespace

std::string memory_charts(const RunRecord& run) {
  if (run.memory.empty()) return "";
  const std::vector<MemoryEvent> all = stretches(run.memory);
  const Events last = last_rollouts(all);
  const std::string close_up = fmt::format("last {} rollouts", kDetailRollouts);
  std::string charts;
  Memory device = kDevice;
  if (run.info.device_is_gpu) device.name = "GPU memory";
  for (const Memory& memory : {device, kHost}) {
    charts += memory_chart({all, "whole run", "the start"}, memory);
    if (all.size() > kMostTicks && last.size() < all.size())
      charts += memory_chart({last, close_up.c_str(), "the first event shown", last.front().time},
                             memory);
  }
  return charts;
}

}  // namespace miles
