#include "rl/rollout_metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

namespace miles {
namespace {

struct Made {
  int64_t group = 0;
  std::optional<double> reward = {};
  int64_t length = 0;
  SampleStatus status = SampleStatus::completed;
};

Sample make(const Made& made) {
  Sample sample;
  sample.group_index = made.group;
  sample.reward = made.reward;
  sample.response_length = made.length;
  sample.tokens.resize(static_cast<size_t>(made.length) + 3);
  std::iota(sample.tokens.begin(), sample.tokens.end(), 0);
  sample.status = made.status;
  return sample;
}

std::map<std::string, double> metrics_of(const std::vector<Sample>& samples,
                                         const std::vector<float>& advantages) {
  const auto metrics = rollout_metrics(samples, advantages);
  return {metrics.begin(), metrics.end()};
}

TEST(RolloutMetrics, SamplesWithoutARewardAreCountedAndLeftOutOfMeans) {
  std::vector<Sample> samples = {
      make({.group = 0, .reward = 1, .length = 4}),
      make({.group = 0, .reward = 0, .length = 10, .status = SampleStatus::truncated}),
      make({.group = 1, .reward = {}, .length = 1, .status = SampleStatus::failed}),
      make({.group = 1, .reward = 0.5, .length = 2})};
  samples[1].num_retractions = 2;
  samples[3].num_retractions = 1;
  auto found = metrics_of(samples, {0.75F, -0.25F, 0, 0.25F});
  EXPECT_DOUBLE_EQ(found.at("rollout/raw_reward"), 0.5);
  EXPECT_DOUBLE_EQ(found.at("rollout/rewards"), 0.25);
  EXPECT_EQ(found.at("rollout/reward_error"), 1);
  EXPECT_EQ(found.at("rollout/response_len/mean"), 4.25);
  EXPECT_EQ(found.at("rollout/response_len/median"), 3);
  EXPECT_EQ(found.at("rollout/response_len/max"), 10);
  EXPECT_EQ(found.at("rollout/response_len/min"), 1);
  EXPECT_EQ(found.at("rollout/truncated_ratio"), 0.25);
  EXPECT_EQ(found.at("rollout/repetition_frac"), 0);
  EXPECT_EQ(found.at("rollout/num_retractions"), 3);
  EXPECT_EQ(found.at("rollout/zero_std/count"), 0);  // one reward left says nothing about a spread
}

TEST(RolloutMetrics, GroupsOfEqualRewardsAreCounted) {
  const std::vector<Sample> samples = {
      make({.group = 0, .reward = 1}), make({.group = 0, .reward = 1}),
      make({.group = 1, .reward = 0}), make({.group = 1, .reward = 1}),
      make({.group = 2, .reward = 0}), make({.group = 2, .reward = 0})};
  EXPECT_EQ(metrics_of(samples, std::vector<float>(6)).at("rollout/zero_std/count"), 2);
}

TEST(RolloutMetrics, WithoutAnyRewardThereIsNoMeanAndWithoutSamplesNothing) {
  const auto found = metrics_of({make({.length = 2})}, {0});
  EXPECT_FALSE(found.contains("rollout/raw_reward"));
  EXPECT_FALSE(found.contains("rollout/rewards"));
  EXPECT_EQ(found.at("rollout/reward_error"), 1);
  EXPECT_TRUE(rollout_metrics({}, {}).empty());
}

TEST(RolloutMetrics, ALoopInTheResponseCountsAndOneInThePromptDoesNot) {
  Sample prompt_loop = make({.reward = 0, .length = 4});
  prompt_loop.tokens.insert(prompt_loop.tokens.begin(), 100, 7);
  Sample response_loop = make({.reward = 0, .length = 4});
  response_loop.tokens.insert(response_loop.tokens.end(), 100, 7);
  response_loop.response_length += 100;
  EXPECT_EQ(metrics_of({prompt_loop, response_loop}, {0, 0}).at("rollout/repetition_frac"), 0.5);
}

TEST(EndsInLoop, SeesAPhraseSaidFourTimesAtTheEnd) {
  std::vector<int32_t> tokens(50);
  std::iota(tokens.begin(), tokens.end(), 100);
  EXPECT_FALSE(ends_in_loop(tokens));
  for (int time = 0; time < 4; ++time)
    for (int32_t token = 0; token < 9; ++token) tokens.push_back(token);
  EXPECT_TRUE(ends_in_loop(tokens));
  tokens.push_back(99);  // it got out of the loop
  EXPECT_FALSE(ends_in_loop(tokens));
}

TEST(EndsInLoop, ThreeTimesOrFewTokensAreNoLoop) {
  EXPECT_FALSE(ends_in_loop({}));
  EXPECT_FALSE(ends_in_loop(std::vector<int32_t>(31, 5)));
  EXPECT_TRUE(ends_in_loop(std::vector<int32_t>(32, 5)));
  std::vector<int32_t> thrice;
  for (int time = 0; time < 3; ++time)
    for (int32_t token = 0; token < 20; ++token) thrice.push_back(token);
  EXPECT_FALSE(ends_in_loop(thrice));
}

}  // namespace
}  // namespace miles
