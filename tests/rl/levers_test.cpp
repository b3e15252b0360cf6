#include "rl/levers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace miles {
namespace {

using Values = std::vector<int64_t>;

TEST(ValuesDownTo, AreEasilySaidAndEndWithTheLeast) {
  EXPECT_EQ(values_down_to(5, 40), (Values{40, 32, 24, 16, 12, 8, 6, 5}));
  EXPECT_EQ(values_down_to(1, 3), (Values{3, 2, 1}));
  EXPECT_EQ(values_down_to(64, 64), (Values{64}));
  EXPECT_EQ(values_down_to(65, 64), (Values{64}));
  EXPECT_EQ(values_down_to(63, 64), (Values{64, 63}));
}

TEST(BudgetsUpTo, AreWhatIsNeededAndEighthsOfAGiBUpToTheMost) {
  constexpr int64_t kGiB = int64_t{1} << 30, kEighth = kGiB / 8;
  EXPECT_EQ(budgets_up_to(3 * kEighth + 7, kEighth / 2, kEighth + 1),
            (Values{kEighth / 2, kEighth, kEighth + 1, 2 * kEighth, 3 * kEighth, 3 * kEighth + 7}));
  EXPECT_EQ(budgets_up_to(kGiB, kGiB, 2 * kGiB), (Values{kGiB}));
  EXPECT_EQ(budgets_up_to(kEighth, 10, 2 * kGiB), (Values{10, kEighth})) << "more than there is";
  EXPECT_EQ(budgets_up_to(kEighth, 10, 5), (Values{10, kEighth}));
}

/// A need of tokens + requests + 100 × samples, of which 40 lie elsewhere when it streams; a token's
/// sample has at least as many tokens as a response.
int64_t need(const TrainConfig& config) {
  const int64_t all = *config.max_tokens_per_gpu + *config.engine.max_running_requests +
                      100 * config.batch.global_batch_size;
  return config.colocate.colocate ? all - 40 : all;
}

TrainConfig config_now() {
  TrainConfig config;
  config.max_tokens_per_gpu = 64;
  config.engine.max_running_requests = 16;
  config.batch.global_batch_size = 4;
  config.device.gpu_memory_budget = 0;
  return config;
}

Remedies remedies() {
  Remedies all;
  all.levers = {
      {.flag = "--global-batch-size",
       .values = {4, 2, 1},
       .set = [](TrainConfig& to, int64_t samples) { return to.batch.global_batch_size = samples; },
       .cost = Lever::Cost::task},
      {.flag = "--max-tokens-per-gpu",
       .values = values_down_to(5, 64),
       .set =
           [](TrainConfig& to, int64_t tokens) {
             return *(to.max_tokens_per_gpu = std::max<int64_t>(tokens, 20));
           }},
      {.flag = "--max-running-requests",
       .values = values_down_to(1, 16),
       .set = [](TrainConfig& to, int64_t requests) {
         return *(to.engine.max_running_requests = requests);
       }}};
  all.modes = {{"--colocate", [](TrainConfig& to) { to.colocate.colocate = true; }}};
  return all;
}

LackOf beyond(int64_t room) {
  return [room](const TrainConfig& config) -> std::optional<Shortage> {
    const int64_t lack = need(config) - room - *config.device.gpu_memory_budget;
    if (lack <= 0) return std::nullopt;
    return Shortage{.bytes = lack, .text = fmt::format("{} are lacking", lack)};
  };
}

std::string within(int64_t room) {
  return what_fits(config_now(), remedies(), beyond(room));
}

TEST(WhatFits, NamesEachFlagThatIsEnoughAtTheValueNearestToNow) {
  ASSERT_EQ(need(config_now()), 480);
  EXPECT_EQ(within(479),
            "It fits with any one of\n"
            "  --max-tokens-per-gpu 48 (instead of 64)\n"
            "  --max-running-requests 12 (instead of 16)\n"
            "  --colocate");
  EXPECT_EQ(within(464),
            "It fits with any one of\n"
            "  --max-tokens-per-gpu 48 (instead of 64)\n"
            "  --colocate");
}

TEST(WhatFits, SaysTheValueThatAFlagCameTo) {
  EXPECT_EQ(within(436), "It fits with\n  --max-tokens-per-gpu 20 (instead of 64)") << "not 16";
}

TEST(WhatFits, ChangesTwoFlagsBeforeTheTask) {
  EXPECT_EQ(within(435),
            "It fits with all of\n"
            "  --max-tokens-per-gpu 20 (instead of 64)\n"
            "  --max-running-requests 12 (instead of 16)");
  EXPECT_EQ(within(396),
            "It fits with all of\n"
            "  --colocate\n"
            "  --max-tokens-per-gpu 20 (instead of 64)");
  EXPECT_EQ(within(381),
            "It fits with all of\n"
            "  --colocate\n"
            "  --max-tokens-per-gpu 20 (instead of 64)\n"
            "  --max-running-requests 1 (instead of 16)");
  EXPECT_EQ(within(380), "It fits with\n  --global-batch-size 2 (instead of 4)");
}

TEST(WhatFits, NamesAsFewAsAreEnoughTogether) {
  EXPECT_EQ(within(179),
            "It fits with all of\n"
            "  --global-batch-size 1 (instead of 4)\n"
            "  --max-tokens-per-gpu 48 (instead of 64)");
  EXPECT_EQ(within(100),
            "It fits with all of\n"
            "  --colocate\n"
            "  --global-batch-size 1 (instead of 4)\n"
            "  --max-tokens-per-gpu 24 (instead of 64)");
  EXPECT_EQ(within(81),
            "It fits with all of\n"
            "  --colocate\n"
            "  --global-batch-size 1 (instead of 4)\n"
            "  --max-tokens-per-gpu 20 (instead of 64)\n"
            "  --max-running-requests 1 (instead of 16)");
}

TEST(WhatFits, SaysWhatIsLackingEvenWithAll) {
  EXPECT_EQ(
      within(80),
      "Take a smaller model, or a machine with more memory: even with --colocate "
      "--global-batch-size 1 --max-tokens-per-gpu 20 --max-running-requests 1, 1 are lacking");
  EXPECT_EQ(what_fits(config_now(), {}, beyond(80)),
            "Take a smaller model, or a machine with more memory: no flag lowers the need");
}

/// With a budget of 0 that may be raised up to 100.
std::string raised(int64_t room) {
  Remedies all = remedies();
  all.levers.insert(
      all.levers.begin(),
      {.flag = "--gpu-memory-budget",
       .values = {0, 10, 20, 60, 100},
       .set = [](TrainConfig& to, int64_t bytes) { return *(to.device.gpu_memory_budget = bytes); },
       .cost = Lever::Cost::memory,
       .unit = Lever::Unit::bytes});
  return what_fits(config_now(), all, beyond(room));
}

TEST(WhatFits, NamesLargerBudgetsApart) {
  EXPECT_EQ(raised(470),
            "It fits with any one of\n"
            "  --max-tokens-per-gpu 48 (instead of 64)\n"
            "  --max-running-requests 6 (instead of 16)\n"
            "  --colocate\n"
            "or with\n"
            "  --gpu-memory-budget 10 (10 B, 10 B more than now)");
  EXPECT_EQ(raised(380),
            "It fits with\n"
            "  --global-batch-size 2 (instead of 4)\n"
            "or with all of\n"
            "  --gpu-memory-budget 60 (60 B, 60 B more than now)\n"
            "  --max-tokens-per-gpu 24 (instead of 64)\n"
            "or with\n"
            "  --gpu-memory-budget 100 (100 B, 100 B more than now)");
  EXPECT_EQ(raised(-15),
            "It fits with all of\n"
            "  --colocate\n"
            "  --gpu-memory-budget 100 (100 B, 100 B more than now)\n"
            "  --global-batch-size 1 (instead of 4)\n"
            "  --max-tokens-per-gpu 20 (instead of 64)\n"
            "  --max-running-requests 4 (instead of 16)")
      << "neither is enough";
}

}  // namespace
}  // namespace miles
