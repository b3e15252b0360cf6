#include "rl/sample.h"

#include <gtest/gtest.h>

#include <limits>

namespace miles {
namespace {

Sample three_tokens() {
  Sample sample;
  sample.index = 7;
  sample.tokens = {1, 2, 3, 4};
  sample.response_length = 3;
  sample.loss_mask = {1, 0, 1};
  sample.rollout_log_probs = {-1, -2, -3};
  return sample;
}

TEST(SampleJson, HasMilesFieldNames) {
  Sample sample = three_tokens();
  sample.prompt = "2+2=";
  sample.status = SampleStatus::truncated;
  sample.reward = 0.5;
  sample.weight_version = 3;
  sample.num_retractions = 5;
  sample.metadata = {{"level", 2}};
  const nlohmann::json out = to_json(sample);
  EXPECT_EQ(out["index"], 7);
  EXPECT_EQ(out["prompt"], "2+2=");
  EXPECT_EQ(out["tokens"], nlohmann::json({1, 2, 3, 4}));
  EXPECT_EQ(out["response_length"], 3);
  EXPECT_EQ(out["loss_mask"], nlohmann::json({1, 0, 1}));
  EXPECT_EQ(out["reward"], 0.5);
  EXPECT_EQ(out["status"], "truncated");
  EXPECT_EQ(out["weight_versions"], nlohmann::json({3}));
  EXPECT_EQ(out["num_retractions"], 5);
  EXPECT_EQ(out["metadata"]["level"], 2);
}

TEST(SampleJson, InvalidUtf8IsReplacedAndCanBeWritten) {
  Sample sample = three_tokens();
  sample.response = "caf\xC3";  // cut inside é
  sample.label = "\xFF";
  const nlohmann::json out = to_json(sample);
  EXPECT_EQ(out["response"], "caf\uFFFD");
  EXPECT_EQ(out["label"], "\uFFFD");
  EXPECT_NO_THROW(out.dump());
}

TEST(SampleJson, AMissingRewardAndAnInfiniteLogProbAreNull) {
  Sample sample = three_tokens();
  sample.rollout_log_probs[0] = -std::numeric_limits<float>::infinity();
  const auto out = nlohmann::json::parse(to_json(sample).dump());
  EXPECT_TRUE(out["reward"].is_null());
  EXPECT_TRUE(out["rollout_log_probs"][0].is_null());
  EXPECT_TRUE(out["weight_versions"].empty());
}

TEST(CheckSample, AcceptsArraysThatFit) {
  check_sample(three_tokens());
  check_sample(Sample{});
}

TEST(CheckSampleDeathTest, AbortsNamingTheSampleWhenLengthsDiffer) {
  Sample sample = three_tokens();
  sample.rollout_log_probs.pop_back();
  EXPECT_DEATH(check_sample(sample), "sample 7: 2 log-probs for 3 response tokens");
  sample = three_tokens();
  sample.loss_mask.push_back(1);
  EXPECT_DEATH(check_sample(sample), "sample 7: 4 mask entries for 3 response tokens");
  sample = three_tokens();
  sample.response_length = 5;
  EXPECT_DEATH(check_sample(sample), "sample 7: response of 5 tokens in a sequence of 4");
  sample = three_tokens();
  sample.loss_mask[0] = 2;
  EXPECT_DEATH(check_sample(sample), "sample 7: a loss mask entry");
}

}  // namespace
}  // namespace miles
