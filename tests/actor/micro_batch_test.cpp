#include "actor/micro_batch.h"

#include <gtest/gtest.h>

#include <numeric>

#include "actor/loss.h"

namespace miles {
namespace {

TrainSample sample_of(int64_t prompt, int64_t response, int32_t first_id = 0) {
  TrainSample sample;
  sample.tokens.resize(static_cast<size_t>(prompt + response));
  std::iota(sample.tokens.begin(), sample.tokens.end(), first_id);
  sample.response_length = response;
  sample.loss_mask.assign(static_cast<size_t>(response), 1);
  return sample;
}

TEST(MicroBatch, TheLongestComesFirstAndEachGoesWhereThereIsRoom) {
  const std::vector<TrainSample> samples = {sample_of(2, 2), sample_of(3, 4), sample_of(2, 1),
                                            sample_of(1, 5), sample_of(1, 1)};  // 4 7 3 6 2
  const auto packed = pack_micro_batches(samples, 10);
  ASSERT_EQ(packed.size(), 3U);
  EXPECT_EQ(packed[0].batch.tokens(), 10);  // 7 + 3
  EXPECT_EQ(packed[1].batch.tokens(), 10);  // 6 + 4
  EXPECT_EQ(packed[2].batch.tokens(), 2);
  EXPECT_EQ(packed[0].token_begin, 0);
  EXPECT_EQ(packed[1].token_begin, 10);
  EXPECT_EQ(packed[2].token_begin, 20);
  EXPECT_EQ(packed[0].batch.query_begin, (std::vector<int32_t>{0, 7, 10}));
  EXPECT_EQ(packed[0].batch.positions, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 0, 1, 2}));
}

TEST(MicroBatch, ARowPredictsTheTokenAfterIt) {
  const std::vector<TrainSample> samples = {sample_of(1, 2, 100), sample_of(3, 2, 200)};
  const auto packed = pack_micro_batches(samples, 16);
  ASSERT_EQ(packed.size(), 1U);
  const MicroBatch& only = packed[0];
  EXPECT_EQ(only.rows, (std::vector<int32_t>{2, 3, 5, 6}));
  EXPECT_EQ(only.targets, (std::vector<int32_t>{203, 204, 101, 102}));
  for (size_t r = 0; r < only.rows.size(); ++r)
    EXPECT_EQ(only.batch.ids[static_cast<size_t>(only.rows[r]) + 1], only.targets[r]);
  EXPECT_EQ(only.origins[0].sample, 1);
  EXPECT_EQ(only.origins[2].sample, 0);
  EXPECT_EQ(only.origins[3].position, 1);
}

TEST(MicroBatch, OfEqualLengthsTheOrderStays) {
  const std::vector<TrainSample> samples(4, sample_of(2, 2));
  const auto packed = pack_micro_batches(samples, 8);
  ASSERT_EQ(packed.size(), 2U);
  EXPECT_EQ(packed[0].origins.front().sample, 0);
  EXPECT_EQ(packed[0].origins.back().sample, 1);
  EXPECT_EQ(packed[1].origins.back().sample, 3);
}

TEST(MicroBatch, NothingIsPackedIntoNothing) {
  EXPECT_TRUE(pack_micro_batches({}, 8).empty());
}

TEST(MicroBatch, ThereAreNeverMoreThanWasPlanned) {
  for (int64_t most = 10; most <= 40; most += 3) {
    for (int64_t seed = 0; seed < 20; ++seed) {
      std::vector<TrainSample> samples;
      int64_t tokens = 0;
      for (int64_t s = 0; s < 1 + seed; ++s) {
        samples.push_back(sample_of(1, 1 + (s * 7 + seed * 5) % (most - 1)));
        tokens += static_cast<int64_t>(samples.back().tokens.size());
      }
      EXPECT_LE(std::ssize(pack_micro_batches(samples, most)),
                most_micro_batches(tokens, std::ssize(samples), most));
    }
  }
}

TEST(MicroBatchDeath, ASampleThatFitsNowhereIsABug) {
  const std::vector<TrainSample> samples = {sample_of(4, 5)};
  EXPECT_DEATH(pack_micro_batches(samples, 8), "sample of 9 tokens");
  const std::vector<TrainSample> without_prompt = {sample_of(0, 5)};
  EXPECT_DEATH(pack_micro_batches(without_prompt, 8), "0 of the prompt");
}

TEST(TokenWeights, OfSamplesMeansAndOfAllTokens) {
  std::vector<TrainSample> samples = {sample_of(1, 4), sample_of(1, 2), sample_of(1, 3)};
  samples[0].loss_mask = {1, 0, 1, 1};
  samples[2].loss_mask = {0, 0, 0};  // counts as a sample, weighs nothing
  LossOptions per_token;
  per_token.calculate_per_token_loss = true;
  EXPECT_EQ(token_weights(samples, {}), (std::vector<float>{1.0F / 9, 1.0F / 6, 0}));
  EXPECT_EQ(token_weights(samples, per_token), (std::vector<float>{1.0F / 5, 1.0F / 5, 0}));
  for (TrainSample& sample : samples)
    std::fill(sample.loss_mask.begin(), sample.loss_mask.end(), 0);
  EXPECT_EQ(token_weights(samples, per_token), (std::vector<float>{0, 0, 0}));
}

}  // namespace
}  // namespace miles
