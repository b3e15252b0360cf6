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

TEST(BudgetsUpTo, AreWhatIsNeededAndWholeGiBUpToTheMost) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(budgets_up_to(3 * kGiB + 7, kGiB / 2, kGiB + 1),
            (Values{kGiB / 2, kGiB + 1, 2 * kGiB, 3 * kGiB, 3 * kGiB + 7}));
  EXPECT_EQ(budgets_up_to(kGiB, kGiB, 2 * kGiB), (Values{kGiB}));
  EXPECT_EQ(budgets_up_to(kGiB, 10, 2 * kGiB), (Values{10, kGiB})) << "more than there is";
  EXPECT_EQ(budgets_up_to(kGiB, 10, 5), (Values{10, kGiB}));
}

/// A need of tokens + requests + 100 × samples, of which 40 lie elsewhere when it streams.
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

std::vector<Lever> levers() {
  return {
      {.flag = "--max-tokens-per-gpu",
       .values = values_down_to(20, 64),
       .set = [](TrainConfig& to, int64_t tokens) { to.max_tokens_per_gpu = tokens; }},
      {.flag = "--max-running-requests",
       .values = values_down_to(1, 16),
       .set = [](TrainConfig& to, int64_t requests) { to.engine.max_running_requests = requests; }},
      {.flag = "--global-batch-size",
       .values = {4, 2, 1},
       .set = [](TrainConfig& to, int64_t samples) { to.batch.global_batch_size = samples; },
       .cost = Lever::Cost::task},
      {.flag = "--colocate",
       .values = {0, 1},
       .set = [](TrainConfig& to, int64_t) { to.colocate.colocate = true; },
       .unit = Lever::Unit::given}};
}

std::string with_budget(int64_t budget) {
  return what_fits(config_now(), levers(),
                   [&](const TrainConfig& config) -> std::optional<std::string> {
                     if (need(config) <= budget) return std::nullopt;
                     return fmt::format("it needs {} of {}", need(config), budget);
                   });
}

TEST(WhatFits, NamesEachFlagThatIsEnoughAtTheValueNearestToNow) {
  ASSERT_EQ(need(config_now()), 480);
  EXPECT_EQ(with_budget(479),
            "It fits with any one of\n"
            "  --max-tokens-per-gpu 48 (instead of 64)\n"
            "  --max-running-requests 12 (instead of 16)\n"
            "  --colocate");
  EXPECT_EQ(with_budget(464),
            "It fits with any one of\n"
            "  --max-tokens-per-gpu 48 (instead of 64)\n"
            "  --colocate");
}

TEST(WhatFits, DoesNotChangeTheTaskWhereItNeedNot) {
  EXPECT_EQ(with_budget(436), "It fits with\n  --max-tokens-per-gpu 20 (instead of 64)");
  EXPECT_EQ(with_budget(435), "It fits with\n  --global-batch-size 2 (instead of 4)")
      << "one flag alone is still better than two";
}

TEST(WhatFits, NamesAsFewAsAreEnoughTogether) {
  EXPECT_EQ(with_budget(180), "It fits with\n  --global-batch-size 1 (instead of 4)");
  EXPECT_EQ(with_budget(179),
            "It fits with all of\n"
            "  --max-tokens-per-gpu 48 (instead of 64)\n"
            "  --global-batch-size 1 (instead of 4)");
  EXPECT_EQ(with_budget(100),
            "It fits with all of\n"
            "  --max-tokens-per-gpu 24 (instead of 64)\n"
            "  --global-batch-size 1 (instead of 4)\n"
            "  --colocate");
  EXPECT_EQ(with_budget(81),
            "It fits with all of\n"
            "  --max-tokens-per-gpu 20 (instead of 64)\n"
            "  --max-running-requests 1 (instead of 16)\n"
            "  --global-batch-size 1 (instead of 4)\n"
            "  --colocate");
}

TEST(WhatFits, SaysWhatIsLackingEvenWithAll) {
  EXPECT_EQ(
      with_budget(80),
      "Take a smaller model, or a machine with more memory: even with --max-tokens-per-gpu 20 "
      "--max-running-requests 1 --global-batch-size 1 --colocate, it needs 81 of 80");
  EXPECT_EQ(
      what_fits(config_now(), {}, [](const TrainConfig&) { return std::optional("too much"); }),
      "Take a smaller model, or a machine with more memory: no flag lowers the need");
}

/// With a budget of 0 that may be raised up to 20.
std::string with_raised_budget(int64_t more) {
  std::vector<Lever> all = levers();
  all.insert(all.begin(),
             {.flag = "--gpu-memory-budget",
              .values = {0, 10, 20},
              .set = [](TrainConfig& to, int64_t bytes) { to.device.gpu_memory_budget = bytes; },
              .cost = Lever::Cost::memory,
              .unit = Lever::Unit::bytes});
  return what_fits(config_now(), all, [&](const TrainConfig& config) -> std::optional<std::string> {
    const int64_t lack = need(config) - *config.device.gpu_memory_budget - more;
    if (lack <= 0) return std::nullopt;
    return fmt::format("{} are lacking", lack);
  });
}

TEST(WhatFits, NamesALargerBudgetApart) {
  EXPECT_EQ(with_raised_budget(470),
            "It fits with any one of\n"
            "  --max-tokens-per-gpu 48 (instead of 64)\n"
            "  --max-running-requests 6 (instead of 16)\n"
            "  --colocate\n"
            "or with\n"
            "  --gpu-memory-budget 10 (10 B, instead of 0 B)");
  EXPECT_EQ(with_raised_budget(75),
            "It fits with all of\n"
            "  --gpu-memory-budget 20 (20 B, instead of 0 B)\n"
            "  --max-tokens-per-gpu 20 (instead of 64)\n"
            "  --max-running-requests 12 (instead of 16)\n"
            "  --global-batch-size 1 (instead of 4)\n"
            "  --colocate")
      << "neither is enough";
  EXPECT_EQ(with_raised_budget(60),
            "Take a smaller model, or a machine with more memory: even with --gpu-memory-budget 20 "
            "--max-tokens-per-gpu 20 --max-running-requests 1 --global-batch-size 1 --colocate, "
            "1 are lacking");
}

TEST(WhatFits, SaysWhatOtherFlagsLackWhereOnlyALargerBudgetIsEnough) {
  const auto advice = [](std::vector<Lever> others) {
    others.push_back(
        {.flag = "--gpu-memory-budget",
         .values = {0, int64_t{3} << 29, int64_t{1} << 40},
         .set = [](TrainConfig& to, int64_t bytes) { to.device.gpu_memory_budget = bytes; },
         .cost = Lever::Cost::memory,
         .unit = Lever::Unit::bytes});
    return what_fits(config_now(), others,
                     [](const TrainConfig& config) -> std::optional<std::string> {
                       if (*config.device.gpu_memory_budget > 1000) return std::nullopt;
                       return "all is lacking";
                     });
  };
  const std::string larger =
      "It fits with\n  --gpu-memory-budget 1610612736 (1.5 GiB, instead of 0 B)";
  EXPECT_EQ(advice({}), larger);
  EXPECT_EQ(advice({levers().back()}),
            larger + "\nNo other flag is enough: even with --colocate, all is lacking");
}

}  // namespace
}  // namespace miles
