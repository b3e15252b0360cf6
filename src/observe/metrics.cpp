#include "observe/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "observe/statistics.h"

namespace miles {
namespace {

constexpr std::string_view kRolloutId = "rollout_id";

}  // namespace

void Mean::add(double value, double weight) {
  const double term = value * weight;
  const double next = sum_ + term;
  compensation_ += std::fabs(sum_) >= std::fabs(term) ? (sum_ - next) + term : (term - next) + sum_;
  sum_ = next;
  weight_ += weight;
  min_ = std::fmin(min_, value);
  max_ = std::fmax(max_, value);
  ++count_;
}

double Mean::mean() const {
  return sum() / weight_;
}

// Once the sum is infinite or NaN the compensation is NaN and says nothing.
double Mean::sum() const {
  return std::isfinite(sum_) ? sum_ + compensation_ : sum_;
}

void Metrics::set(std::string_view name, double value) {
  MILES_CHECK(!name.empty() && name != kRolloutId, "'{}' cannot name a metric", name);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.first == name; });
  if (found != entries_.end()) {
    found->second = value;
  } else {
    entries_.emplace_back(name, value);
  }
}

void Metrics::set_spread(std::string_view name, std::span<const double> values) {
  const std::string prefix = std::string(name) + '/';
  set(prefix + "mean", mean_of(values));
  set(prefix + "median", median_of(values));
  set(prefix + "max", max_of(values));
  set(prefix + "min", min_of(values));
}

void Metrics::merge(const Metrics& other) {
  for (const auto& [name, value] : other.entries_) set(name, value);
}

std::optional<double> Metrics::find(std::string_view name) const {
  for (const auto& [key, value] : entries_)
    if (key == name) return value;
  return std::nullopt;
}

nlohmann::ordered_json Metrics::to_json(int64_t rollout_id) const {
  nlohmann::ordered_json line = {{kRolloutId, rollout_id}};
  for (const auto& [name, value] : entries_) {
    if (std::isfinite(value)) {
      line[name] = value;
    } else {
      line[name] = nullptr;
    }
  }
  return line;
}

}  // namespace miles
