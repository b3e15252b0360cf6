#include "observe/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/units.h"
#include "observe/axis.h"
#include "observe/html.h"
#include "observe/report_charts.h"
#include "observe/statistics.h"

namespace miles {
namespace {

constexpr size_t kRecent = 10;  // rollouts that "recent" means

/// The last value that is there; NaN when none is.
double last_of(std::span<const double> values) {
  for (size_t i = values.size(); i-- > 0;)
    if (!std::isnan(values[i])) return values[i];
  return std::nan("");
}

std::span<const double> recent(const std::vector<double>& values) {
  return std::span(values).last(std::min(values.size(), kRecent));
}

Quantity quantity_of(const std::string& metric) {
  const bool time = metric.starts_with("perf/") && metric.ends_with("_time");
  return time ? Quantity::seconds : Quantity::number;
}

std::string tile(const std::string& value, const std::string& name) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape_html(value),
                     escape_html(name));
}

std::string summary(const RunRecord& run) {
  // The evaluation before the first rollout has a row of its own, under −1.
  const auto rollouts = std::ranges::count_if(run.rollout_ids, [](auto id) { return id >= 0; });
  std::string tiles =
      tile(format_quantity(static_cast<double>(rollouts), Quantity::count), "rollouts");
  if (const auto* reward = run.find("rollout/raw_reward"))
    tiles += tile(format_quantity(mean_of(recent(*reward)), Quantity::number),
                  fmt::format("reward, mean of last {}", recent(*reward).size()));
  if (const auto* step = run.find("perf/step_time"))
    tiles += tile(format_quantity(median_of(*step), Quantity::seconds), "a step, median");
  if (!run.memory.empty()) {
    int64_t device = 0;
    int64_t host = 0;
    for (const MemoryEvent& event : run.memory) {
      device = std::max(device, event.device_peak);
      host = std::max(host, event.host_peak);
    }
    const auto of = [](const char* name, int64_t budget) {
      return budget > 0 ? fmt::format("{} peak, of {}", name, format_bytes(budget))
                        : fmt::format("{} peak", name);
    };
    tiles += tile(format_bytes(device), of(run.device_word(), run.memory.back().device_budget));
    tiles += tile(format_bytes(host), of("host", run.memory.back().host_budget));
  }
  return fmt::format("<div class=\"tiles\">\n{}</div>\n", tiles);
}

/// What is known of all events of one name.
struct EventSummary {
  std::string name;
  std::vector<double> seconds;  // [times it happened]
  int64_t device_after = 0;     // bytes, after the last one
  int64_t device_peak = 0;      // bytes, largest
  int64_t host_after = 0;       // bytes, after the last one
  int64_t host_peak = 0;        // bytes, largest
};

/// In the order in which the names first appear, which is the order of the handoff.
std::vector<EventSummary> summarise(const std::vector<MemoryEvent>& events) {
  std::vector<EventSummary> summaries;
  for (const MemoryEvent& event : events) {
    auto found = std::find_if(summaries.begin(), summaries.end(), [&](const EventSummary& summary) {
      return summary.name == event.event;
    });
    if (found == summaries.end()) {
      summaries.push_back({.name = event.event, .seconds = {}});
      found = summaries.end() - 1;
    }
    found->seconds.push_back(event.seconds);
    found->device_after = event.device_total;
    found->device_peak = std::max(found->device_peak, event.device_peak);
    found->host_after = event.host_total;
    found->host_peak = std::max(found->host_peak, event.host_peak);
  }
  return summaries;
}

std::string event_table(const RunRecord& run) {
  if (run.memory.empty())
    return "<p class=\"soft\">This run has no memory.jsonl, or no event in it yet.</p>\n";
  std::string rows;
  for (const EventSummary& summary : summarise(run.memory)) {
    rows += fmt::format(
        "<tr><td class=\"name\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td>"
        "</tr>\n",
        escape_html(summary.name), summary.seconds.size(),
        format_seconds(median_of(summary.seconds)), format_bytes(summary.device_after),
        format_bytes(summary.device_peak), format_bytes(summary.host_after),
        format_bytes(summary.host_peak));
  }
  return fmt::format(
      "<div class=\"card\"><table>\n<tr><th>event</th><th class=\"n\">count</th>"
      "<th class=\"n\">median time</th><th class=\"n\">{0} after the last</th>"
      "<th class=\"n\">{0} peak</th><th class=\"n\">host after the last</th>"
      "<th class=\"n\">host peak</th></tr>\n{1}</table></div>\n",
      run.device_word(), rows);
}

std::string metric_table(const RunRecord& run) {
  if (run.metrics.empty()) return "<p class=\"soft\">No rollout has finished yet.</p>\n";
  std::string rows;
  for (const auto& [name, values] : run.metrics) {
    const Quantity quantity = quantity_of(name);
    rows += fmt::format(
        "<tr><td class=\"name\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
        escape_html(name), format_quantity(last_of(values), quantity),
        format_quantity(mean_of(recent(values)), quantity),
        format_quantity(min_of(values), quantity), format_quantity(max_of(values), quantity));
  }
  return fmt::format(
      "<div class=\"card\"><table>\n<tr><th>metric</th><th class=\"n\">last</th>"
      "<th class=\"n\">mean of last {}</th><th class=\"n\">smallest</th><th "
      "class=\"n\">largest</th>"
      "</tr>\n{}</table></div>\n",
      std::min(run.rollout_ids.size(), kRecent), rows);
}

}  // namespace

std::string report_html(const RunRecord& run) {
  std::string subtitle = "No rollout has finished yet";
  if (!run.rollout_ids.empty())
    subtitle = run.rollout_ids.size() == 1
                   ? fmt::format("Rollout {}", run.rollout_ids.front())
                   : fmt::format("Rollouts {} to {}", std::max<int64_t>(0, run.rollout_ids.front()),
                                 run.rollout_ids.back());
  if (!run.info.device.empty()) subtitle += ", on " + run.info.device;
  std::string body = fmt::format("<h1>{}</h1>\n<p class=\"soft\">{}</p>\n", escape_html(run.name),
                                 escape_html(subtitle));
  body += summary(run);
  if (!run.rollout_ids.empty())
    body +=
        fmt::format("<h2>Training</h2>\n<div class=\"charts\">\n{}</div>\n", metric_charts(run));
  if (!run.memory.empty())
    body += fmt::format("<h2>Memory</h2>\n<div class=\"charts\">\n{}</div>\n", memory_charts(run));
  body += "<h2>Handoff</h2>\n" + event_table(run);
  body += "<h2>Metrics</h2>\n" + metric_table(run);
  if (!run.config.empty())
    body += fmt::format("<h2>Configuration</h2>\n<div class=\"card\"><pre>{}</pre></div>\n",
                        escape_html(run.config));
  return html_page(run.name + " – miles.cpp", body);
}

void write_report(const std::filesystem::path& run_dir) {
  write_file_atomically(run_dir / "report.html", report_html(read_run(run_dir)));
}

}  // namespace miles
