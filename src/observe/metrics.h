// The numbers of one rollout, by name ("rollout/raw_reward"), and what gathers them while it runs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace miles {

/// Weighted mean, sum and extremes of values added one at a time. Sums are compensated (Neumaier
/// 1974), so that a million small terms lose nothing. Of nothing: mean, min and max are NaN, the
/// sum is 0.
class Mean {
 public:
  /// `weight` >= 0: how much the value counts in mean() and sum(), for instance a number of tokens.
  void add(double value, double weight = 1);

  double mean() const;                      // Σ weight·value / Σ weight
  double sum() const;                       // Σ weight·value
  double min() const { return min_; }       // smallest value whatever its weight
  double max() const { return max_; }       // largest value whatever its weight
  int64_t count() const { return count_; }  // values added

 private:
  double sum_ = 0;
  double compensation_ = 0;  // what sum_ has lost to rounding
  double weight_ = 0;
  double min_ = std::numeric_limits<double>::quiet_NaN();
  double max_ = std::numeric_limits<double>::quiet_NaN();
  int64_t count_ = 0;
};

/// Names and values in the order in which they were first set.
class Metrics {
 public:
  using Entry = std::pair<std::string, double>;

  /// Sets or replaces. "rollout_id" is not a metric's name: it aborts.
  void set(std::string_view name, double value);

  /// Sets name/mean, name/median, name/max and name/min; all NaN when `values` is empty.
  void set_spread(std::string_view name, std::span<const double> values);

  /// Sets all of `other`'s, replacing those of the same name.
  void merge(const Metrics& other);

  std::optional<double> find(std::string_view name) const;
  const std::vector<Entry>& entries() const { return entries_; }

  /// {"rollout_id": rollout_id, name: value, …}, a line of metrics.jsonl. NaN and infinity are
  /// null.
  nlohmann::ordered_json to_json(int64_t rollout_id) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace miles
