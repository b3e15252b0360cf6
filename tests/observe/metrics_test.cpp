#include "observe/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "observe/statistics.h"

namespace miles {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(Mean, WeighsItsValues) {
  Mean mean;
  mean.add(1, 3);
  mean.add(5, 1);
  EXPECT_EQ(mean.mean(), 2);
  EXPECT_EQ(mean.sum(), 8);
  EXPECT_EQ(mean.min(), 1);
  EXPECT_EQ(mean.max(), 5);
  EXPECT_EQ(mean.count(), 2);
}

TEST(Mean, OfNothingIsNaN) {
  const Mean mean;
  EXPECT_TRUE(std::isnan(mean.mean()));
  EXPECT_TRUE(std::isnan(mean.max()));
  EXPECT_EQ(mean.sum(), 0);
}

TEST(Mean, SmallTermsAreNotLostBesideLargeOnes) {
  Mean mean;
  mean.add(1e16);
  for (int i = 0; i < 1000; ++i) mean.add(1);
  mean.add(-1e16);
  EXPECT_EQ(mean.sum(), 1000);
}

TEST(Mean, AnInfinityStaysAnInfinity) {
  Mean mean;
  mean.add(std::numeric_limits<double>::infinity());
  mean.add(1);
  EXPECT_TRUE(std::isinf(mean.sum()));
}

TEST(Metrics, KeepTheOrderInWhichTheyWereFirstSet) {
  Metrics metrics;
  metrics.set("rollout/raw_reward", 0.5);
  metrics.set("eval/a", 1);
  metrics.set("rollout/raw_reward", 0.25);
  EXPECT_EQ(metrics.to_json(7).dump(),
            R"({"rollout_id":7,"rollout/raw_reward":0.25,"eval/a":1.0})");
}

TEST(Metrics, NaNAndInfinityAreNull) {
  Metrics metrics;
  metrics.set("a", kNaN);
  metrics.set("b", -std::numeric_limits<double>::infinity());
  EXPECT_EQ(metrics.to_json(0).dump(), R"({"rollout_id":0,"a":null,"b":null})");
}

TEST(Metrics, SpreadHasMeanMedianMaxAndMin) {
  Metrics metrics;
  metrics.set_spread("len", std::vector<double>{4, 1, 2, 9});
  EXPECT_EQ(metrics.find("len/mean"), 4);
  EXPECT_EQ(metrics.find("len/median"), 3);
  EXPECT_EQ(metrics.find("len/max"), 9);
  EXPECT_EQ(metrics.find("len/min"), 1);
  EXPECT_EQ(metrics.find("len"), std::nullopt);
}

TEST(Metrics, MergeReplacesAndAdds) {
  Metrics a;
  a.set("x", 1);
  a.set("y", 2);
  Metrics b;
  b.set("z", 4);
  b.set("x", 3);
  a.merge(b);
  EXPECT_EQ(a.entries(), (std::vector<Metrics::Entry>{{"x", 3}, {"y", 2}, {"z", 4}}));
}

TEST(MetricsDeathTest, TheRolloutIdIsNotAMetric) {
  Metrics metrics;
  EXPECT_DEATH(metrics.set("rollout_id", 1), "cannot name a metric");
}

TEST(Statistics, SkipGaps) {
  const std::vector<double> values = {kNaN, 3, 1, kNaN, 8};
  EXPECT_EQ(mean_of(values), 4);
  EXPECT_EQ(median_of(values), 3);
  EXPECT_EQ(min_of(values), 1);
  EXPECT_EQ(max_of(values), 8);
  EXPECT_TRUE(std::isnan(mean_of({})));
  EXPECT_TRUE(std::isnan(median_of(std::vector<double>{kNaN})));
}

TEST(Statistics, RunningMeanIsCutAtTheEnds) {
  const std::vector<double> values = {1, 2, 6, 4};
  EXPECT_EQ(running_mean(values, 1), (std::vector<double>{1.5, 3, 4, 5}));
  EXPECT_EQ(running_mean(values, 0), values);
}

TEST(Statistics, SplitCoversEveryIndexOnce) {
  for (const size_t count : {0UL, 1UL, 7UL, 359UL, 361UL, 5000UL}) {
    size_t next = 0;
    const auto ranges = split_evenly(count, 360);
    EXPECT_LE(ranges.size(), 360U);
    for (const IndexRange& range : ranges) {
      EXPECT_EQ(range.begin, next);
      EXPECT_GT(range.end, range.begin);
      EXPECT_LE(range.end - range.begin, count / ranges.size() + 1);
      next = range.end;
    }
    EXPECT_EQ(next, count);
  }
}

}  // namespace
}  // namespace miles
