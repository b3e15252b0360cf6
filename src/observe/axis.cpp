#include "observe/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/units.h"

namespace miles {
namespace {

struct Unit {
  double size;       // in the data's own unit
  const char* name;  // empty for plain numbers
};

/// The unit in which the largest value `largest` reads best.
Unit unit_of(Quantity quantity, double largest) {
  if (quantity == Quantity::seconds) {
    if (largest < 1) return {1e-3, "ms"};
    if (largest < 180) return {1, "s"};
    if (largest < 3 * 3600) return {60, "min"};
    return {3600, "h"};
  }
  if (quantity == Quantity::bytes) {
    static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int power = 0;
    while (power < 4 && largest >= std::pow(1024.0, power + 1)) ++power;
    return {std::pow(1024.0, power), kNames[power]};
  }
  return {1, ""};
}

/// The smallest of 1, 2, 5 × 10^k that is at least `least`.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

std::string tick_label(double value, double step, double largest) {
  if (std::fabs(value) < step * 1e-6) return "0";
  if (step < 1e-4 || largest >= 1e7) return fmt::format("{:.4g}", value);
  if (largest >= 1e4 && step >= 100)
    return fmt::format("{:.{}f}k", value / 1e3, step >= 1000 ? 0 : 1);
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return fmt::format("{:.{}f}", value, decimals);
}

std::string with_thousands(int64_t value) {
  std::string digits = std::to_string(value);
  const int first = value < 0 ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

}  // namespace

Axis make_axis(const AxisOptions& options) {
  double low = options.low;
  double high = options.high;
  if (!std::isfinite(low) || !std::isfinite(high)) {
    low = 0;
    high = 1;
  }
  if (high <= low) {
    const double margin = low == 0 ? 1 : std::fabs(low) * 0.1;
    // Neither what is 0 throughout nor what cannot be negative gets an axis that is.
    const bool below = options.quantity == Quantity::number ? low != 0 : low >= margin;
    low = below ? low - margin : 0;
    high += margin;
  }
  const double largest = std::max(std::fabs(low), std::fabs(high));
  const Unit unit = unit_of(options.quantity, largest);
  double step = round_step((high - low) / unit.size / std::max(1, options.max_ticks - 1));
  if (options.quantity == Quantity::count) step = std::max(step, 1.0);
  step *= unit.size;
  if (options.ends == AxisOptions::Ends::ticks) {
    low = std::floor(low / step + 1e-9) * step;
    high = std::ceil(high / step - 1e-9) * step;
  }
  Axis axis = {.low = low, .high = high, .unit = unit.name, .ticks = {}};
  const auto first = static_cast<int64_t>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<int64_t>(std::floor(high / step + 1e-9));
  for (int64_t i = first; i <= last; ++i) {
    const double value = static_cast<double>(i) * step;
    axis.ticks.push_back(
        {value, tick_label(value / unit.size, step / unit.size, largest / unit.size)});
  }
  return axis;
}

std::string format_quantity(double value, Quantity quantity) {
  if (!std::isfinite(value)) return "–";
  if (quantity == Quantity::bytes) return format_bytes(std::llround(value));
  if (quantity == Quantity::seconds) return value == 0 ? "0 s" : format_seconds(value);
  if (std::fabs(value) >= 1e12) return fmt::format("{:.4g}", value);
  if (value == std::floor(value) || std::fabs(value) >= 1e5)
    return with_thousands(std::llround(value));
  return fmt::format("{:.{}g}", value, std::fabs(value) >= 1e3 ? 5 : 4);
}

}  // namespace miles
