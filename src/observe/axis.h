// An axis: a range, round values to mark on it, and how they are written.
#pragma once

#include <string>
#include <vector>

namespace miles {

/// What an axis or a value counts; decides its unit and how it is rounded.
enum class Quantity {
  number,   // any real number
  count,    // whole things: rollouts, tokens
  seconds,  // shown in ms, s, min or h
  bytes,    // shown in B, KiB, MiB, GiB or TiB
};

struct AxisTick {
  double value = 0;   // in the data's own unit: seconds, bytes, …
  std::string label;  // without unit: "40"
};

struct Axis {
  double low = 0;               // in the data's own unit
  double high = 1;              // > low
  std::string unit;             // of the labels: "GiB", "min"; empty for plain numbers
  std::vector<AxisTick> ticks;  // ascending, all within [low, high]
};

struct AxisOptions {
  double low = 0;   // smallest value to show; NaN (with high): nothing to show, the axis is 0 … 1
  double high = 1;  // largest value to show; an empty range is widened
  Quantity quantity = Quantity::number;
  int max_ticks = 6;                                   // >= 2
  enum class Ends { data, ticks } ends = Ends::ticks;  // range ends at the data or at the next tick
};

/// Ticks are multiples of 1, 2 or 5 times a power of ten, in the unit of the labels.
Axis make_axis(const AxisOptions& options);

/// One value for people: "0.5312", "1,204", "3.2 s", "71.3 GiB"; "–" for NaN.
std::string format_quantity(double value, Quantity quantity);

}  // namespace miles
