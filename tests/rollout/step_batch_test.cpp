#include "rollout/step_batch.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace miles {
namespace {

/// A prompt of three tokens with one drawn, and a prompt of six; pages of two tokens.
class StepBatchTest : public testing::Test {
 protected:
  StepBatchTest() {
    decoding_.id = 70;
    decoding_.tokens = {10, 11, 12, 13};
    decoding_.prompt_length = 3;
    decoding_.pages = {5, 2};
    decoding_.params = {.temperature = 0.5F, .min_new_tokens = 2, .stop_token_ids = {8, 9}};
    decoding_.stop =
        std::make_unique<StopChecker>(decoding_.params, decoding_.params.stop_token_ids, nullptr);
    prefilling_.tokens = {20, 21, 22, 23, 24, 25};
    prefilling_.prompt_length = 6;
    prefilling_.pages = {0, 7, 4};
    prefilling_.params.seed = 99;
  }

  StepBatch make(int64_t first, int64_t count) {
    StepPlan plan;
    plan.pieces = {{.sequence = &decoding_, .first = 3, .count = 1},
                   {.sequence = &prefilling_, .first = first, .count = count}};
    return make_step_batch(plan, 2, 42);
  }

  Sequence decoding_, prefilling_;
};

TEST_F(StepBatchTest, PutsEachTokenWhereItsPageIs) {
  const HostBatch batch = make(1, 3).tokens;
  EXPECT_EQ(batch.ids, (std::vector<int32_t>{13, 21, 22, 23}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{3, 1, 2, 3}));
  EXPECT_EQ(batch.slots, (std::vector<int32_t>{5, 1, 14, 15}));
  EXPECT_EQ(batch.query_begin, (std::vector<int32_t>{0, 1, 4}));
  EXPECT_EQ(batch.context, (std::vector<int32_t>{4, 4}));
  EXPECT_EQ(batch.page_size, 2);
  EXPECT_TRUE(batch.kv_begin.empty());
}

TEST_F(StepBatchTest, PageTablesAreAsLongAsTheLongestNeedsNow) {
  EXPECT_EQ(make(1, 3).tokens.page_table, (std::vector<int32_t>{5, 2, 0, 7}));
  EXPECT_EQ(make(1, 4).tokens.page_table, (std::vector<int32_t>{5, 2, 0, 0, 7, 4}));
}

TEST_F(StepBatchTest, DrawsOnlyAfterTheLastTokenOfASequence) {
  EXPECT_EQ(make(1, 3).rows, std::vector<int32_t>{0});
  const StepBatch step = make(2, 4);
  EXPECT_EQ(step.rows, (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(step.inverse_temperature, (std::vector<float>{2.0F, 1.0F}));
  ASSERT_EQ(step.samples.size(), 2U);
  EXPECT_EQ(step.samples[0].uniform, uniform(42, RngUse::sampling, 70, 4)) << "id and position";
  EXPECT_EQ(step.samples[1].uniform, uniform(99, RngUse::sampling, 0, 6)) << "its own seed";
}

TEST_F(StepBatchTest, BansStopIdsUntilTheFewestTokensAreDrawn) {
  const StepBatch step = make(2, 4);
  ASSERT_EQ(step.bans.size(), 2U);
  EXPECT_EQ(step.bans[0].draw, 0);
  EXPECT_EQ(step.bans[0].id, 8);
  EXPECT_EQ(step.bans[1].id, 9);
  decoding_.params.min_new_tokens = 1;
  EXPECT_TRUE(make(2, 4).bans.empty());
}

TEST_F(StepBatchTest, PaddingAddsTokensThatWriteNothing) {
  StepPlan plan;
  plan.pieces = {{.sequence = &decoding_, .first = 3, .count = 1},
                 {.sequence = &prefilling_, .first = 5, .count = 1}};
  const StepBatch step = make_step_batch(plan, 2, 42);
  ASSERT_TRUE(step.is_decode());
  const StepBatch padded = padded_step(step, 4, 5);
  ASSERT_TRUE(padded.is_decode());
  EXPECT_EQ(padded.tokens.slots, (std::vector<int32_t>{5, 9, -1, -1}));
  EXPECT_EQ(padded.tokens.context, (std::vector<int32_t>{4, 6, 1, 1}));
  EXPECT_EQ(padded.tokens.query_begin, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(padded.rows, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(padded.tokens.page_table, (std::vector<int32_t>{5, 2, 0, 0, 0, 0, 7, 4, 0, 0,  //
                                                            0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(padded.samples.size(), 4U);
  EXPECT_EQ(padded.inverse_temperature, (std::vector<float>{2.0F, 1.0F, 1.0F, 1.0F}));
}

}  // namespace
}  // namespace miles
