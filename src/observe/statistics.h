// Small statistics over series that may have gaps: a NaN is a value that is not there, and is
// skipped.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace miles {

/// NaN when there is no value.
double mean_of(std::span<const double> values);
double median_of(std::span<const double> values);
double min_of(std::span<const double> values);
double max_of(std::span<const double> values);

/// The mean over the window [i - half_width, i + half_width], cut at the ends. [values]
std::vector<double> running_mean(std::span<const double> values, size_t half_width);

/// Indices begin … end-1.
struct IndexRange {
  size_t begin = 0;
  size_t end = 0;
};

/// Splits 0 … count-1 into at most `at_most` >= 1 consecutive ranges, none empty, whose sizes
/// differ by one at most: a chart draws one point for each.
std::vector<IndexRange> split_evenly(size_t count, size_t at_most);

}  // namespace miles
