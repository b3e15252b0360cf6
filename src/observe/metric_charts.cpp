#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "observe/report_charts.h"
#include "observe/statistics.h"
#include "observe/svg_chart.h"

namespace miles {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kSmoothFrom = 24;  // rollouts from which a running mean says more than the values
constexpr size_t kMostEvals = 4;    // evaluation curves that can be told apart

using Column = std::vector<double>;

/// Rollouts grouped for drawing: one point stands for one range.
class Grouping {
 public:
  explicit Grouping(const RunRecord& run)
      : run_(run), ranges_(split_evenly(run.rollout_ids.size(), kChartPoints)) {}

  template <class Statistic>
  Column reduce(const Column& values, Statistic statistic) const {
    Column reduced;
    for (const IndexRange& range : ranges_)
      reduced.push_back(statistic(std::span(values).subspan(range.begin, range.end - range.begin)));
    return reduced;
  }

  /// A chart over rollouts, without series.
  ChartSpec chart() const {
    ChartSpec chart;
    chart.x_label = "rollout";
    for (const IndexRange& range : ranges_) {
      const int64_t first = run_.rollout_ids[range.begin];
      const int64_t last = run_.rollout_ids[range.end - 1];
      chart.x.push_back(static_cast<double>(first + last) / 2);
      chart.x_captions.push_back(first == last ? fmt::format("rollout {}", first)
                                               : fmt::format("rollouts {} … {}", first, last));
    }
    return chart;
  }

  bool grouped() const { return ranges_.size() < run_.rollout_ids.size(); }

 private:
  const RunRecord& run_;
  std::vector<IndexRange> ranges_;
};

/// Adds a noisy metric: its values, and where there are many a smoothed line on top.
void add_noisy(ChartSpec& chart, const Grouping& groups, const Column& values,
               const std::string& name) {
  if (values.size() < kSmoothFrom) {
    chart.series.push_back({name, "blue-1", Mark::points, groups.reduce(values, mean_of), {}});
    return;
  }
  if (groups.grouped()) {
    chart.series.push_back({name + ", min … max", "blue-2", Mark::band,
                            groups.reduce(values, max_of), groups.reduce(values, min_of)});
  } else {
    chart.series.push_back({name, "blue-2", Mark::thin, values, {}});
  }
  const size_t half = std::max<size_t>(2, values.size() / 40);
  chart.series.push_back({fmt::format("mean of {}", 2 * half + 1),
                          "blue-1",
                          Mark::line,
                          groups.reduce(running_mean(values, half), mean_of),
                          {}});
}

std::string reward_chart(const RunRecord& run, const Grouping& groups) {
  ChartSpec chart = groups.chart();
  chart.title = "Reward";
  chart.y_label = "reward";
  if (const Column* raw = run.find("rollout/raw_reward"))
    add_noisy(chart, groups, *raw, "rollout/raw_reward");
  static constexpr std::array<const char*, kMostEvals> kColours = {"orange-1", "green-0", "pink-0",
                                                                   "grey-0"};
  size_t evals = 0;
  for (const std::string& name : run.eval_scores()) {
    if (evals == kMostEvals) break;
    chart.series.push_back(
        {name, kColours[evals++], Mark::points, groups.reduce(*run.find(name), mean_of), {}});
  }
  return chart.series.empty() && !chart.x.empty() ? "" : svg_chart(chart);
}

std::string length_chart(const RunRecord& run, const Grouping& groups) {
  const Column* mean = run.find("rollout/response_len/mean");
  if (mean == nullptr) return "";
  ChartSpec chart = groups.chart();
  chart.title = "Response length";
  chart.y_label = "tokens";
  chart.y_quantity = Quantity::count;
  const Column* low = run.find("rollout/response_len/min");
  const Column* high = run.find("rollout/response_len/max");
  if (low != nullptr && high != nullptr)
    chart.series.push_back({"shortest … longest", "blue-2", Mark::band,
                            groups.reduce(*high, max_of), groups.reduce(*low, min_of)});
  const Mark mark = mean->size() < kSmoothFrom ? Mark::points : Mark::line;
  chart.series.push_back({"mean", "blue-1", mark, groups.reduce(*mean, mean_of), {}});
  return svg_chart(chart);
}

std::string step_time_chart(const RunRecord& run, const Grouping& groups) {
  struct Part {
    const char* metric;
    const char* name;
    const char* colour;
  };
  static constexpr Part kParts[] = {
      {"perf/rollout_time", "rollout", "orange-1"},
      {"perf/train_time", "train", "blue-1"},
      {"perf/wake_up_time", "wake up", "green-1"},
      {"perf/sleep_time", "sleep", "green-0"},
      {"perf/update_weights_time", "update weights", "pink-0"},
      {"perf/save_model_time", "save model", "blue-3"},
  };
  ChartSpec chart = groups.chart();
  chart.title = "Step time";
  chart.y_label = "time";
  chart.y_quantity = Quantity::seconds;
  chart.spacing = Spacing::bars;
  Column known(run.rollout_ids.size(), 0);
  for (const Part& part : kParts) {
    const Column* values = run.find(part.metric);
    if (values == nullptr) continue;
    for (size_t i = 0; i < known.size(); ++i)
      if ((*values)[i] > 0) known[i] += (*values)[i];
    chart.series.push_back(
        {part.name, part.colour, Mark::area, groups.reduce(*values, mean_of), {}});
  }
  if (const Column* step = run.find("perf/step_time")) {
    Column other(known.size());
    for (size_t i = 0; i < known.size(); ++i)
      other[i] = std::isnan((*step)[i]) ? kNone : std::max(0.0, (*step)[i] - known[i]);
    chart.series.push_back({"other", "grey-2", Mark::area, groups.reduce(other, mean_of), {}});
  }
  return chart.series.empty() ? "" : svg_chart(chart);
}

/// Metrics that have a chart of their own.
struct Plain {
  const char* metric;
  const char* title;
  const char* y_label;
  double least = -1;  // magnitude: a chart of smaller ones alone would show rounding
};
constexpr Plain kPlain[] = {
    {"train/grad_norm", "Gradient norm", "norm before clipping"},
    {"train/entropy_loss", "Entropy", "nats a token"},
    {"train/loss", "Loss", "loss", 1e-5},  // on policy 0 but for rounding
    {"train/kl_loss", "KL to the reference", "nats a token"},
};

std::string plain_chart(const RunRecord& run, const Grouping& groups, const Plain& plain) {
  const Column* values = run.find(plain.metric);
  if (values == nullptr ||
      std::ranges::none_of(*values, [&](double value) { return std::fabs(value) > plain.least; }))
    return "";
  ChartSpec chart = groups.chart();
  chart.title = plain.title;
  chart.y_label = plain.y_label;
  add_noisy(chart, groups, *values, plain.metric);
  return svg_chart(chart);
}

}  // namespace

std::string metric_charts(const RunRecord& run) {
  const Grouping groups(run);
  std::string charts =
      reward_chart(run, groups) + length_chart(run, groups) + step_time_chart(run, groups);
  for (const Plain& plain : kPlain) charts += plain_chart(run, groups, plain);
  return charts;
}

}  // namespace miles
