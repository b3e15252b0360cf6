#include "rl/batch_sizes.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace miles {
namespace {

using Given = std::optional<int64_t>;
constexpr Given kUnset;

BatchSizeFlags flags(Given rollout, Given n, Given global, Given steps) {
  return {.rollout_batch_size = rollout,
          .n_samples_per_prompt = n,
          .global_batch_size = global,
          .num_steps_per_rollout = steps};
}

std::string error_of(const BatchSizeFlags& given) {
  try {
    resolve_batch_sizes(given);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::flags);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(BatchSizes, AnyThreeGiveTheFourth) {
  const BatchSizes all = {32, 4, 64, 2};
  EXPECT_EQ(resolve_batch_sizes(flags(32, 4, 64, 2)), all);
  EXPECT_EQ(resolve_batch_sizes(flags(kUnset, 4, 64, 2)), all);
  EXPECT_EQ(resolve_batch_sizes(flags(32, kUnset, 64, 2)), all);
  EXPECT_EQ(resolve_batch_sizes(flags(32, 4, kUnset, 2)), all);
  EXPECT_EQ(resolve_batch_sizes(flags(32, 4, 64, kUnset)), all);
  EXPECT_EQ(all.samples_per_rollout(), 128);
}

TEST(BatchSizes, DefaultsAreEightSamplesAPromptAndOneStep) {
  EXPECT_EQ(resolve_batch_sizes(flags(32, kUnset, kUnset, kUnset)), (BatchSizes{32, 8, 256, 1}));
  EXPECT_EQ(resolve_batch_sizes(flags(32, kUnset, 128, kUnset)), (BatchSizes{32, 8, 128, 2}));
  EXPECT_EQ(resolve_batch_sizes(flags(32, kUnset, kUnset, 4)), (BatchSizes{32, 8, 64, 4}));
  EXPECT_EQ(resolve_batch_sizes(flags(kUnset, kUnset, 64, kUnset)), (BatchSizes{8, 8, 64, 1}));
}

TEST(BatchSizes, SamplesUsedAloneNeedNoGroup) {
  BatchSizeFlags sft = flags(32, kUnset, kUnset, kUnset);
  sft.use = SampleUse::alone;
  EXPECT_EQ(resolve_batch_sizes(sft), (BatchSizes{32, 1, 32, 1}));
}

TEST(BatchSizes, AGroupOfOneIsRefusedWhetherGivenOrDerived) {
  EXPECT_NE(error_of(flags(32, 1, kUnset, kUnset)).find("set --n-samples-per-prompt to 2"),
            std::string::npos);
  EXPECT_NE(error_of(flags(32, kUnset, 32, 1)).find("no advantage"), std::string::npos);
}

TEST(BatchSizes, ContradictionsNameAllTheNumbers) {
  const std::string message = error_of(flags(32, 8, 100, 3));
  for (const char* part : {"--rollout-batch-size 32", "--n-samples-per-prompt 8", "256",
                           "--global-batch-size 100", "--num-steps-per-rollout 3", "300"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(BatchSizes, RemaindersProposeTheNearestValuesThatDivide) {
  EXPECT_NE(error_of(flags(32, 8, 100, kUnset)).find("set --global-batch-size to 64 or 128"),
            std::string::npos);
  EXPECT_NE(error_of(flags(32, 8, kUnset, 300)).find("set --num-steps-per-rollout to 256,"),
            std::string::npos);
  EXPECT_NE(error_of(flags(10, kUnset, 32, 1)).find("set --rollout-batch-size to 8 or 16"),
            std::string::npos);
  EXPECT_NE(error_of(flags(kUnset, 5, 32, 1)).find("set --n-samples-per-prompt to 4 or 8"),
            std::string::npos);
}

TEST(BatchSizes, TooLittleAndOutOfRangeAreRefused) {
  EXPECT_NE(error_of(flags(kUnset, kUnset, kUnset, kUnset)).find("give --rollout-batch-size"),
            std::string::npos);
  EXPECT_NE(error_of(flags(kUnset, 8, kUnset, 2)).find("give --rollout-batch-size"),
            std::string::npos);
  EXPECT_NE(error_of(flags(0, 8, kUnset, kUnset)).find("--rollout-batch-size is 0"),
            std::string::npos);
  EXPECT_NE(error_of(flags(8, -8, kUnset, kUnset)).find("--n-samples-per-prompt is -8"),
            std::string::npos);
  EXPECT_NE(error_of(flags(1'000'000'000, 1'000'000'000, kUnset, kUnset)).find("can be held"),
            std::string::npos);
}

}  // namespace
}  // namespace miles
