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
  EXPECT_FALSE(padded.tokens.shares());
}

/// Sequences that decode, each with its pages; pages of 16 tokens, so a tile of keys is four.
class SharingTest : public testing::Test {
 protected:
  /// One that has the pages first … first + shared − 1 and then some of its own, and `length`
  /// tokens.
  void add(int32_t first, int32_t shared, int64_t length, int64_t count = 1) {
    auto& sequence = sequences_.emplace_back(std::make_unique<Sequence>());
    sequence->tokens.assign(static_cast<size_t>(length), 1);
    sequence->prompt_length = length;
    for (int32_t i = 0; i < shared; ++i) sequence->pages.push_back(first + i);
    while (std::ssize(sequence->pages) * 16 < length) sequence->pages.push_back(next_page_++);
    plan_.pieces.push_back({.sequence = sequence.get(), .first = length - count, .count = count});
  }
  StepBatch make() const { return make_step_batch(plan_, 16, 42); }

  int32_t next_page_ = 1000;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  StepPlan plan_;
};

TEST_F(SharingTest, NeighboursThatBeginWithTheSamePagesAreARun) {
  add(0, 10, 200);  // 160 keys on the same pages: two tiles
  add(0, 10, 170);
  add(0, 10, 161);
  add(500, 4, 100);  // one tile, to the key
  add(500, 4, 90);
  add(0, 10, 200);  // its likes are no neighbours
  const HostBatch batch = make().tokens;
  EXPECT_EQ(batch.shared_runs, (std::vector<int32_t>{0, 3, 3, 2}));
  EXPECT_EQ(batch.shared_keys, (std::vector<int32_t>{128, 128, 128, 64, 64, 0}));
}

TEST_F(SharingTest, RunsEndWhereLessIsSharedAndAreNoLongerThanAttentionTakes) {
  for (int i = 0; i < 11; ++i) add(0, 8, 150);
  add(0, 4, 150);  // half of it only
  const HostBatch batch = make().tokens;
  EXPECT_EQ(batch.shared_runs, (std::vector<int32_t>{0, 8, 8, 3}));
  EXPECT_EQ(batch.shared_keys.back(), 0);
}

TEST_F(SharingTest, TheKeyThatIsAboutToBeWrittenIsNotShared) {
  add(0, 8, 128);
  add(0, 8, 129);
  EXPECT_EQ(make().tokens.shared_keys, (std::vector<int32_t>{64, 64}));
}

TEST_F(SharingTest, PiecesOfSeveralTokensShareNothing) {
  add(0, 8, 140, 3);
  add(0, 8, 140);
  EXPECT_FALSE(make().tokens.shares());
  add(0, 8, 140);
  EXPECT_EQ(make().tokens.shared_runs, (std::vector<int32_t>{1, 2}));
}

TEST_F(SharingTest, WhatSavesLittleIsNotWorthIt) {
  add(0, 4, 100);
  add(0, 4, 100);
  EXPECT_TRUE(make().tokens.shares());
  add(900, 0, 640);  // one tile of 14 saved
  EXPECT_FALSE(make().tokens.shares());
  EXPECT_TRUE(make().tokens.shared_keys.empty());
}

TEST_F(SharingTest, PaddingAddsRunsAndSequencesOfNobody) {
  for (int i = 0; i < 5; ++i) add(0, 8, 150);
  const HostBatch padded = padded_step(make(), 7, 12).tokens;
  EXPECT_EQ(padded.shared_runs, (std::vector<int32_t>{0, 5, 0, 0, 0, 0}));
  EXPECT_EQ(padded.shared_keys, (std::vector<int32_t>{128, 128, 128, 128, 128, 0, 0}));
}

}  // namespace
}  // namespace miles
