#include "rl/advantages.h"

#include <gtest/gtest.h>

#include <cmath>

namespace miles {
namespace {

Sample scored(int64_t group, std::optional<double> reward) {
  Sample sample;
  sample.group_index = group;
  sample.reward = reward;
  sample.loss_mask = {1, 1};
  return sample;
}

std::vector<Sample> group_of(const std::vector<std::optional<double>>& rewards, int64_t group = 0) {
  std::vector<Sample> samples;
  for (const auto& reward : rewards) samples.push_back(scored(group, reward));
  return samples;
}

using Values = std::vector<float>;

TEST(GroupAdvantages, AreTheRewardsInUnbiasedStandardDeviationsFromTheMean) {
  // Mean 0.25; squares 3 × 0.0625 + 0.5625 = 0.75; std = sqrt(0.75 / 3) = 0.5.
  const auto found = group_advantages(group_of({1, 0, 0, 0}), RewardNorm::mean_std);
  EXPECT_FLOAT_EQ(found[0], static_cast<float>(0.75 / (0.5 + 1e-6)));
  for (size_t i = 1; i < 4; ++i)
    EXPECT_FLOAT_EQ(found[i], static_cast<float>(-0.25 / (0.5 + 1e-6)));
}

TEST(GroupAdvantages, WithoutStdOnlyTheMeanIsTakenOff) {
  EXPECT_EQ(group_advantages(group_of({1, 0, 0, 0}), RewardNorm::mean),
            (Values{0.75F, -0.25F, -0.25F, -0.25F}));
}

TEST(GroupAdvantages, WithoutNormalisationTheyAreTheRewards) {
  EXPECT_EQ(group_advantages(group_of({1, 0, std::nullopt, 3}), RewardNorm::none),
            (Values{1, 0, 0, 3}));
  EXPECT_EQ(group_advantages(group_of({2}), RewardNorm::none), Values{2});
}

TEST(GroupAdvantages, EqualRewardsGiveExactlyZero) {
  // 3 × 0.1 / 3 is not 0.1 in binary; divided by 1e-6 the difference would count.
  EXPECT_EQ(group_advantages(group_of({0.1, 0.1, 0.1}), RewardNorm::mean_std), (Values{0, 0, 0}));
}

TEST(GroupAdvantages, AFailedSampleTakesNoPartInItsGroup) {
  const auto with = group_advantages(group_of({1, std::nullopt, 0, 0.5}), RewardNorm::mean_std);
  const auto without = group_advantages(group_of({1, 0, 0.5}), RewardNorm::mean_std);
  EXPECT_EQ(with, (Values{without[0], 0, without[1], without[2]}));
}

TEST(GroupAdvantages, AGroupWithOneOrNoRewardLeftIsZero) {
  const std::optional<double> none;
  EXPECT_EQ(group_advantages(group_of({none, none}), RewardNorm::mean_std), (Values{0, 0}));
  EXPECT_EQ(group_advantages(group_of({none, 1}), RewardNorm::mean_std), (Values{0, 0}));
  EXPECT_EQ(group_advantages({}, RewardNorm::mean_std), Values{});
}

TEST(GroupAdvantages, GroupsAreApartWhereverTheirSamplesLie) {
  const std::vector<Sample> samples = {scored(5, 1), scored(2, 10), scored(5, 0), scored(2, 20)};
  EXPECT_EQ(group_advantages(samples, RewardNorm::mean), (Values{0.5F, -5, -0.5F, 5}));
}

TEST(GroupAdvantagesDeathTest, AGroupOfOneAndARewardThatIsNoNumberAbort) {
  EXPECT_DEATH(group_advantages(group_of({1}), RewardNorm::mean), "group 0 has one sample");
  EXPECT_DEATH(group_advantages(group_of({1, NAN}), RewardNorm::mean), "has the reward nan");
}

TEST(MaskUnscored, TakesOnlySamplesWithoutARewardOutOfTheLoss) {
  auto samples = group_of({0, std::nullopt, 1});
  EXPECT_EQ(mask_unscored(samples), 1);
  EXPECT_EQ(samples[0].loss_mask, (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(samples[1].loss_mask, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(samples[2].loss_mask, (std::vector<int32_t>{1, 1}));
}

}  // namespace
}  // namespace miles
