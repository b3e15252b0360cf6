// Steps that must not happen: nothing to learn from, or gradients that are no numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/actor/actor_rig.h"

namespace miles {
namespace {

using test::actor_options;
using test::ActorRig;
using test::deep_config;
using test::full_loss;
using test::kPlacements;
using test::some_samples;

class SkippedStep : public testing::TestWithParam<ActorPlacement> {
 protected:
  SkippedStep() {
    loss_.policy.use_kl_loss = false;
    loss_.policy.kl_loss_coef = 0;
    rig_.actor.onload();
    rig_.actor.train_step(some_samples(4), loss_);
    before_ = rig_.weights();
    version_ = rig_.actor.weight_version();
  }

  void expect_nothing_changed(const StepResult& result) {
    EXPECT_TRUE(result.skipped);
    EXPECT_EQ(rig_.actor.skipped_steps(), 1);
    EXPECT_EQ(rig_.actor.optimizer_steps(), 1);
    EXPECT_EQ(rig_.actor.weight_version(), version_);
    EXPECT_TRUE(rig_.weights() == before_);
    // And the next step is as if it had not been.
    ActorRig other(deep_config(DType::bf16), actor_options(GetParam()));
    other.actor.onload();
    other.actor.train_step(some_samples(4), loss_);
    const StepResult expected = other.actor.train_step(some_samples(5), loss_);
    const StepResult next = rig_.actor.train_step(some_samples(5), loss_);
    EXPECT_FALSE(next.skipped);
    EXPECT_EQ(next.grad_norm, expected.grad_norm);
    EXPECT_EQ(next.loss.loss, expected.loss.loss);
    EXPECT_TRUE(rig_.weights() == other.weights());
  }

  LossOptions loss_ = full_loss();
  ActorRig rig_{deep_config(DType::bf16), actor_options(GetParam())};
  std::vector<std::byte> before_;
  int64_t version_ = 0;
};

TEST_P(SkippedStep, EveryTokenIsMasked) {
  std::vector<TrainSample> samples = some_samples();
  for (TrainSample& sample : samples) std::ranges::fill(sample.loss_mask, 0);
  const StepResult result = rig_.actor.train_step(samples, loss_);
  EXPECT_EQ(result.loss.loss, 0);
  EXPECT_EQ(result.grad_norm, 0);
  EXPECT_EQ(result.loss.tokens, 0);
  expect_nothing_changed(result);
}

TEST_P(SkippedStep, EveryTokenIsMaskedInAMeanOverTokens) {
  std::vector<TrainSample> samples = some_samples();
  for (TrainSample& sample : samples) std::ranges::fill(sample.loss_mask, 0);
  LossOptions per_token = loss_;
  per_token.calculate_per_token_loss = true;
  expect_nothing_changed(rig_.actor.train_step(samples, per_token));
}

TEST_P(SkippedStep, AnAdvantageIsNoNumber) {
  std::vector<TrainSample> samples = some_samples();
  for (size_t i = 0; i < samples[2].advantages.size(); ++i)
    if (samples[2].loss_mask[i] != 0) {
      samples[2].advantages[i] = std::numeric_limits<float>::quiet_NaN();
      break;
    }
  const StepResult result = rig_.actor.train_step(samples, loss_);
  EXPECT_FALSE(std::isfinite(result.grad_norm));
  expect_nothing_changed(result);
}

TEST_P(SkippedStep, NotOnlyBecauseATokenThatIsMaskedHoldsNoNumber) {
  std::vector<TrainSample> samples = some_samples(), poisoned = samples;
  for (TrainSample& sample : poisoned)
    for (size_t i = 0; i < sample.loss_mask.size(); ++i)
      if (sample.loss_mask[i] == 0)
        sample.advantages[i] = sample.old_log_probs[i] = std::numeric_limits<float>::quiet_NaN();
  ActorRig other(deep_config(DType::bf16), actor_options(GetParam()));
  other.actor.onload();
  other.actor.train_step(some_samples(4), loss_);
  other.actor.train_step(samples, loss_);
  const StepResult result = rig_.actor.train_step(poisoned, loss_);
  EXPECT_FALSE(result.skipped);
  EXPECT_TRUE(rig_.weights() == other.weights());
}

INSTANTIATE_TEST_SUITE_P(All, SkippedStep, testing::ValuesIn(kPlacements),
                         [](const auto& info) { return test::name_of(info.param); });

}  // namespace
}  // namespace miles
