#include "actor/lr_schedule.h"

#include <gtest/gtest.h>

namespace miles {
namespace {

TEST(LrSchedule, WarmsUpLinearlyFromTheFirstStep) {
  const LrSchedule schedule{.lr = 1e-3, .style = LrDecayStyle::constant, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(schedule.at(0), 2.5e-4);
  EXPECT_DOUBLE_EQ(schedule.at(3), 1e-3);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1e-3);
  EXPECT_DOUBLE_EQ(schedule.at(1'000'000), 1e-3);
}

TEST(LrSchedule, DecaysLinearly) {
  const LrSchedule schedule{
      .lr = 1, .min_lr = 0.2, .style = LrDecayStyle::linear, .warmup_steps = 2, .decay_steps = 10};
  EXPECT_DOUBLE_EQ(schedule.at(1), 1);
  EXPECT_DOUBLE_EQ(schedule.at(2), 1);
  EXPECT_DOUBLE_EQ(schedule.at(6), 0.6);
  EXPECT_DOUBLE_EQ(schedule.at(10), 0.2);
  EXPECT_DOUBLE_EQ(schedule.at(11), 0.2);
}

TEST(LrSchedule, DecaysAsACosine) {
  const LrSchedule schedule{
      .lr = 1, .min_lr = 0.2, .style = LrDecayStyle::cosine, .decay_steps = 8};
  EXPECT_DOUBLE_EQ(schedule.at(0), 1);
  EXPECT_NEAR(schedule.at(4), 0.6, 1e-12);
  EXPECT_GT(schedule.at(2), 0.8);
  EXPECT_LT(schedule.at(6), 0.4);
  EXPECT_DOUBLE_EQ(schedule.at(8), 0.2);
}

TEST(LrSchedule, AWarmUpAsLongAsTheDecayDividesByNothing) {
  const LrSchedule schedule{
      .lr = 1, .min_lr = 0.5, .style = LrDecayStyle::cosine, .warmup_steps = 3, .decay_steps = 3};
  EXPECT_DOUBLE_EQ(schedule.at(2), 1);
  EXPECT_DOUBLE_EQ(schedule.at(3), 0.5);
}

}  // namespace
}  // namespace miles
