#include "observe/axis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace miles {
namespace {

std::vector<std::string> labels(const Axis& axis) {
  std::vector<std::string> labels;
  for (const AxisTick& tick : axis.ticks) labels.push_back(tick.label);
  return labels;
}

using Labels = std::vector<std::string>;
constexpr double kGiB = 1024.0 * 1024 * 1024;

TEST(Axis, TicksAreRoundAndEncloseTheData) {
  const Axis axis = make_axis({.low = 0.13, .high = 0.71});
  EXPECT_EQ(labels(axis), (Labels{"0", "0.2", "0.4", "0.6", "0.8"}));
  EXPECT_LE(axis.low, 0.13);
  EXPECT_GE(axis.high, 0.71);
}

TEST(Axis, BytesAreRoundInTheirUnit) {
  const Axis axis = make_axis({.low = 0, .high = 71.3 * kGiB, .quantity = Quantity::bytes});
  EXPECT_EQ(axis.unit, "GiB");
  EXPECT_EQ(labels(axis), (Labels{"0", "20", "40", "60", "80"}));
  EXPECT_EQ(axis.ticks.back().value, 80 * kGiB);
}

TEST(Axis, SecondsBecomeMinutesAndHours) {
  EXPECT_EQ(make_axis({.high = 0.02, .quantity = Quantity::seconds}).unit, "ms");
  EXPECT_EQ(make_axis({.high = 90, .quantity = Quantity::seconds}).unit, "s");
  EXPECT_EQ(make_axis({.high = 3000, .quantity = Quantity::seconds}).unit, "min");
  EXPECT_EQ(make_axis({.high = 50000, .quantity = Quantity::seconds}).unit, "h");
}

TEST(Axis, CountsHaveNoFractions) {
  EXPECT_EQ(labels(make_axis({.high = 2, .quantity = Quantity::count, .max_ticks = 10})),
            (Labels{"0", "1", "2"}));
}

TEST(Axis, EndsAtTheDataWhereAsked) {
  const Axis axis = make_axis({.low = 3, .high = 97, .ends = AxisOptions::Ends::data});
  EXPECT_EQ(axis.low, 3);
  EXPECT_EQ(axis.high, 97);
  EXPECT_EQ(labels(axis), (Labels{"20", "40", "60", "80"}));
}

TEST(Axis, NegativeValuesCrossZeroWithoutAMinus) {
  EXPECT_EQ(labels(make_axis({.low = -0.3, .high = 0.2})),
            (Labels{"-0.3", "-0.2", "-0.1", "0", "0.1", "0.2"}));
}

TEST(Axis, AnEmptyOrAbsentRangeIsWidened) {
  for (const double value : {0.0, 5.0, -2.0, 1e-9, 1e12}) {
    const Axis axis = make_axis({.low = value, .high = value});
    EXPECT_LT(axis.low, axis.high) << value;
    EXPECT_GE(axis.ticks.size(), 2U) << value;
    EXPECT_LE(axis.ticks.size(), 8U) << value;
  }
  for (const Quantity quantity : {Quantity::number, Quantity::bytes})
    EXPECT_EQ(make_axis({.low = 0, .high = 0, .quantity = quantity}).low, 0);
  const Axis none = make_axis({.low = std::nan(""), .high = std::nan("")});
  EXPECT_EQ(none.low, 0);
  EXPECT_EQ(none.high, 1);
}

TEST(FormatQuantity, WritesForPeople) {
  EXPECT_EQ(format_quantity(0.53124, Quantity::number), "0.5312");
  EXPECT_EQ(format_quantity(1e-6, Quantity::number), "1e-06");
  EXPECT_EQ(format_quantity(1234567, Quantity::number), "1,234,567");
  EXPECT_EQ(format_quantity(-1234, Quantity::count), "-1,234");
  EXPECT_EQ(format_quantity(-123, Quantity::count), "-123");
  EXPECT_EQ(format_quantity(1.5 * kGiB, Quantity::bytes), "1.5 GiB");
  EXPECT_EQ(format_quantity(0, Quantity::seconds), "0 s");
  EXPECT_EQ(format_quantity(std::numeric_limits<double>::quiet_NaN(), Quantity::bytes), "–");
}

}  // namespace
}  // namespace miles
