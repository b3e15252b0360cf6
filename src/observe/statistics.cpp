#include "observe/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace miles {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

}  // namespace

double mean_of(std::span<const double> values) {
  double sum = 0;
  size_t count = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    sum += value;
    ++count;
  }
  return count == 0 ? kNone : sum / static_cast<double>(count);
}

double median_of(std::span<const double> values) {
  std::vector<double> sorted;
  std::copy_if(values.begin(), values.end(), std::back_inserter(sorted),
               [](double value) { return !std::isnan(value); });
  if (sorted.empty()) return kNone;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

double min_of(std::span<const double> values) {
  double result = kNone;
  for (const double value : values) result = std::fmin(result, value);  // fmin ignores NaN
  return result;
}

double max_of(std::span<const double> values) {
  double result = kNone;
  for (const double value : values) result = std::fmax(result, value);
  return result;
}

std::vector<double> running_mean(std::span<const double> values, size_t half_width) {
  std::vector<double> means(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t begin = i - std::min(i, half_width);
    const size_t end = std::min(values.size(), i + half_width + 1);
    means[i] = mean_of(values.subspan(begin, end - begin));
  }
  return means;
}

std::vector<IndexRange> split_evenly(size_t count, size_t at_most) {
  MILES_CHECK(at_most >= 1, "cannot split into no ranges");
  const size_t parts = std::min(count, at_most);
  std::vector<IndexRange> ranges(parts);
  for (size_t i = 0; i < parts; ++i) ranges[i] = {count * i / parts, count * (i + 1) / parts};
  return ranges;
}

}  // namespace miles
