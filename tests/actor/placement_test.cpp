// Where the trainer keeps its state changes no bit of what it computes.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/actor/actor_rig.h"

namespace miles {
namespace {

using test::actor_options;
using test::ActorRig;
using test::deep_config;
using test::full_loss;
using test::kPlacements;
using test::some_samples;

/// What happens between two steps.
enum class Between { nothing, clear, offload };

/// Everything that a run shows.
struct Trace {
  std::vector<std::vector<std::vector<float>>> log_probs;  // of each scoring: [samples][response]
  std::vector<double> losses;                              // loss, pg, kl, entropy of each step
  std::vector<double> grad_norms;
  std::vector<int> micro_batches;
  std::vector<std::byte> weights;
  std::string state;  // the checkpoint
};

/// Two rollouts' worth: score under both policies, then two steps.
Trace run(const ModelConfig& config, const ActorOptions& options, Between between) {
  ActorRig rig(config, options);
  ActorModel& actor = rig.actor;
  const LossOptions loss = full_loss();
  Trace trace;
  const auto pause = [&] {
    if (between == Between::clear) actor.clear_memory();
    if (between != Between::offload) return;
    actor.offload();
    actor.onload();
  };
  actor.onload();
  for (uint64_t rollout = 0; rollout < 2; ++rollout) {
    std::vector<TrainSample> samples = some_samples(rollout + 1);
    trace.log_probs.push_back(actor.log_probs(Policy::reference, samples, loss.temperature));
    pause();
    trace.log_probs.push_back(actor.log_probs(Policy::actor, samples, loss.temperature));
    for (size_t s = 0; s < samples.size(); ++s) {
      samples[s].ref_log_probs = trace.log_probs[trace.log_probs.size() - 2][s];
      samples[s].old_log_probs = trace.log_probs.back()[s];
    }
    for (int step = 0; step < 2; ++step) {
      pause();
      const StepResult result = actor.train_step(samples, loss);
      EXPECT_FALSE(result.skipped);
      for (const double value : {result.loss.loss, result.loss.pg_loss, result.loss.kl_loss,
                                 result.loss.entropy_loss, result.loss.ppo_kl})
        trace.losses.push_back(value);
      trace.grad_norms.push_back(result.grad_norm);
      trace.micro_batches.push_back(result.micro_batches);
    }
  }
  trace.weights = rig.weights();
  trace.state = rig.state();
  return trace;
}

void expect_equal(const Trace& got, const Trace& expected) {
  EXPECT_EQ(got.log_probs, expected.log_probs);
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.grad_norms, expected.grad_norms);
  EXPECT_EQ(got.micro_batches, expected.micro_batches);
  EXPECT_TRUE(got.weights == expected.weights) << "weights differ";
  EXPECT_TRUE(got.state == expected.state) << "checkpoints differ";
}

struct Case {
  DType dtype;
  bool tied;
};

class Placement : public testing::TestWithParam<Case> {
 protected:
  ModelConfig config() const { return deep_config(GetParam().dtype, GetParam().tied); }
};

TEST_P(Placement, ResidentLoadedAndStreamedGiveTheSameBits) {
  const Trace expected = run(config(), actor_options(ActorPlacement::resident), Between::nothing);
  EXPECT_GE(expected.micro_batches[0], 3);
  for (const double norm : expected.grad_norms) EXPECT_GT(norm, 0);
  // The second step of a rollout is off-policy: the ratio and the KL have come into play.
  EXPECT_NE(expected.losses[5 + 4], 0.0);
  EXPECT_NE(expected.losses[5 + 2], 0.0);
  for (const ActorPlacement placement : kPlacements) {
    SCOPED_TRACE(test::name_of(placement));
    expect_equal(run(config(), actor_options(placement), Between::nothing), expected);
  }
}

TEST_P(Placement, LeavingTheDeviceBetweenStepsChangesNoBit) {
  const Trace expected = run(config(), actor_options(ActorPlacement::resident), Between::nothing);
  for (const ActorPlacement placement : kPlacements) {
    for (const Between between : {Between::clear, Between::offload}) {
      SCOPED_TRACE(test::name_of(placement) +
                   (between == Between::clear ? ", clear" : ", offload"));
      expect_equal(run(config(), actor_options(placement), between), expected);
    }
  }
}

TEST_P(Placement, AnotherSplitOfTheStepAgreesToRounding) {
  const ActorOptions options = actor_options(ActorPlacement::loaded);
  ActorOptions other = options;
  other.max_tokens_per_gpu = 130;
  other.log_probs_chunk_size = 64;
  const Trace a = run(config(), options, Between::nothing);
  const Trace b = run(config(), other, Between::nothing);
  EXPECT_LT(b.micro_batches[0], a.micro_batches[0]);
  // The forward is the same to the bit, however the step is split; sums over tokens are not.
  EXPECT_EQ(a.log_probs[0], b.log_probs[0]);
  EXPECT_EQ(a.log_probs[1], b.log_probs[1]);
  const double tolerance = GetParam().dtype == DType::f32 ? 2e-5 : 2e-2;
  for (size_t i = 0; i < 1; ++i)
    EXPECT_NEAR(a.grad_norms[i], b.grad_norms[i], tolerance * a.grad_norms[i]);
  for (size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(a.losses[i], b.losses[i], 1e-6 * (1 + std::fabs(a.losses[i])));
}

INSTANTIATE_TEST_SUITE_P(Models, Placement,
                         testing::Values(Case{DType::f32, true}, Case{DType::bf16, true},
                                         Case{DType::f32, false}, Case{DType::bf16, false}),
                         [](const auto& info) {
                           return std::string(info.param.dtype == DType::f32 ? "f32" : "bf16") +
                                  (info.param.tied ? "_tied" : "_untied");
                         });

TEST(PlacementOfTheReference, StaysWhatItWasWhileTheActorLearns) {
  for (const ActorPlacement placement : kPlacements) {
    SCOPED_TRACE(test::name_of(placement));
    ActorRig rig(deep_config(DType::f32), actor_options(placement));
    std::vector<TrainSample> samples = some_samples();
    rig.actor.onload();
    const auto first = rig.actor.log_probs(Policy::actor, samples, 1);
    EXPECT_EQ(rig.actor.log_probs(Policy::reference, samples, 1), first);
    LossOptions loss = full_loss();
    loss.policy.use_kl_loss = false;
    loss.policy.kl_loss_coef = 0;
    rig.actor.train_step(samples, loss);
    EXPECT_EQ(rig.actor.log_probs(Policy::reference, samples, 1), first);
    EXPECT_NE(rig.actor.log_probs(Policy::actor, samples, 1), first);
    rig.actor.load_reference(
        [&](const Tensor& flat) { init_random_weights(rig.config, rig.layout, 99, flat); });
    EXPECT_NE(rig.actor.log_probs(Policy::reference, samples, 1), first);
  }
}

}  // namespace
}  // namespace miles
