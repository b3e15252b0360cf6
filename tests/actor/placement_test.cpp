// Where the trainer keeps its state, and which activations it keeps, changes no bit of what it
// computes.
#include <fmt/format.h>
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
  std::vector<int64_t> kept_blocks;  // alone not compared
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
      trace.kept_blocks.push_back(result.kept_blocks);
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
  int64_t head_dim = 0;  // of a model for a GPU's tensor cores; 0: of a small one
};

class Placement : public testing::TestWithParam<Case> {
 protected:
  ModelConfig config() const {
    const ModelConfig config = deep_config(GetParam().dtype, GetParam().tied);
    return GetParam().head_dim > 0 ? test::widened(config, GetParam().head_dim) : config;
  }
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

TEST_P(Placement, StateThatStaysChangesNoBit) {
  const Trace expected = run(config(), actor_options(ActorPlacement::resident), Between::nothing);
  const ParamLayout layout(config());
  const int64_t layers = layout.layers(), chunks = std::ssize(make_chunks(layout));
  ASSERT_GT(chunks, layers);
  for (const auto& [resident_layers, resident_states] : {std::pair<int64_t, int64_t>{1, 0},
                                                         {0, 1},
                                                         {2, 3},
                                                         {layers - 1, chunks - 1},
                                                         {layers, 0},
                                                         {layers, chunks}}) {
    for (const Between between : {Between::nothing, Between::clear, Between::offload}) {
      SCOPED_TRACE(fmt::format("{} layers and {} states, then {}", resident_layers, resident_states,
                               static_cast<int>(between)));
      ActorOptions options = actor_options(ActorPlacement::streamed);
      options.resident_layers = resident_layers;
      options.resident_states = resident_states;
      expect_equal(run(config(), options, between), expected);
    }
  }
}

TEST_P(Placement, StateThatStaysIsCopiedOnceATurn) {
  // Bytes that the second step of a turn brings to the device and takes from it.
  const auto copied = [&](int64_t layers, int64_t states) {
    ActorOptions options = actor_options(ActorPlacement::streamed);
    options.resident_layers = layers;
    options.resident_states = states;
    ActorRig rig(config(), options);
    rig.actor.onload();
    const auto samples = some_samples();
    EXPECT_FALSE(rig.actor.train_step(samples, full_loss()).skipped);
    rig.ledger.begin_event();
    EXPECT_FALSE(rig.actor.train_step(samples, full_loss()).skipped);
    return std::pair{rig.ledger.usage(Place::device).arrived,
                     rig.ledger.usage(Place::host).arrived};
  };
  const ParamLayout layout(config());
  const std::vector<Chunk> chunks = make_chunks(layout);
  const int64_t size = size_of(config().dtype), all = layout.layers();
  int64_t layer_bytes = 0, gradient_bytes = 0, state_bytes = 0;
  for (int64_t l = 0; l < all; ++l) layer_bytes += layout.layer(l).elements * size;
  for (const Chunk& chunk : chunks) {
    gradient_bytes += chunk.elements * size;
    state_bytes += chunk_state(chunk.elements, config().dtype).bytes;
  }
  const auto [in, out] = copied(0, 0);
  const auto [in_layers, out_layers] = copied(all, 0);
  // Forward, backward and optimizer read the weights, and the optimizer the gradients; a window
  // spares two blocks each time.
  EXPECT_LE(in_layers, in - 3 * layer_bytes - gradient_bytes + 8 * layer_bytes / all);
  EXPECT_LE(in - 3 * layer_bytes - gradient_bytes, in_layers);
  EXPECT_EQ(out_layers, out - layer_bytes - gradient_bytes);
  const auto [in_all, out_all] = copied(all, std::ssize(chunks));
  EXPECT_EQ(in_all, in_layers - state_bytes);
  EXPECT_EQ(out_all, out_layers - state_bytes);
}

TEST_P(Placement, KeepingActivationsChangesNoBit) {
  const Trace expected = run(config(), actor_options(ActorPlacement::resident), Between::nothing);
  const int64_t blocks = config().num_hidden_layers;
  for (const int64_t kept : expected.kept_blocks) EXPECT_EQ(kept, 0);
  for (const ActorPlacement placement : kPlacements) {
    for (int64_t recomputed = 0; recomputed <= blocks; ++recomputed) {
      SCOPED_TRACE(test::name_of(placement) + ", recomputed " + std::to_string(recomputed));
      ActorOptions options = actor_options(placement);
      options.recompute_num_layers = recomputed;
      const Trace got = run(config(), options, Between::clear);
      expect_equal(got, expected);
      for (size_t step = 0; step < got.kept_blocks.size(); ++step) {
        const int64_t all = blocks * got.micro_batches[step];
        EXPECT_GE(got.kept_blocks[step], (blocks - recomputed) * got.micro_batches[step]);
        EXPECT_LE(got.kept_blocks[step], recomputed == blocks ? 0 : all);
      }
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

/// Of few rows, several runs of several chunks, the last of them in part; of 48, a single one.
TEST_P(Placement, HowManyRowsPassTheHeadTogetherChangesNoMoreThanRounding) {
  ActorOptions options = actor_options(ActorPlacement::streamed);
  options.log_probs_chunk_size = 48;
  const Trace a = run(config(), options, Between::nothing);
  const double tolerance = GetParam().dtype == DType::f32 ? 2e-5 : 1e-3;
  for (const int64_t rows : {1, 3, 5}) {
    options.log_probs_chunk_size = rows;
    const Trace b = run(config(), options, Between::nothing);
    EXPECT_EQ(a.log_probs[0], b.log_probs[0]) << rows;
    EXPECT_EQ(a.log_probs[1], b.log_probs[1]) << rows;
    EXPECT_NEAR(a.grad_norms[0], b.grad_norms[0], tolerance * a.grad_norms[0]) << rows;
    for (size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(a.losses[i], b.losses[i], 1e-6 * (1 + std::fabs(a.losses[i]))) << rows;
  }
}

/// What a longer response may take is no part of a checkpoint's fingerprint.
TEST_P(Placement, RoomForMoreTokensThanComeChangesNoBit) {
  ActorOptions options = actor_options(ActorPlacement::streamed);
  options.max_tokens_per_gpu = options.max_tokens_per_step;
  options.log_probs_chunk_size = 3;
  const Trace expected = run(config(), options, Between::nothing);
  EXPECT_EQ(expected.micro_batches[0], 1);
  options.max_tokens_per_gpu = options.max_tokens_per_step *= 3;
  expect_equal(run(config(), options, Between::nothing), expected);
}

INSTANTIATE_TEST_SUITE_P(Models, Placement,
                         testing::Values(Case{DType::f32, true}, Case{DType::bf16, true},
                                         Case{DType::f32, false}, Case{DType::bf16, false},
                                         Case{DType::bf16, true, 64},
                                         Case{DType::bf16, false, 128}),
                         [](const auto& info) {
                           return std::string(info.param.dtype == DType::f32 ? "f32" : "bf16") +
                                  (info.param.tied ? "_tied" : "_untied") +
                                  (info.param.head_dim > 0 ? fmt::format("_{}", info.param.head_dim)
                                                           : "");
                         });

/// Samples of these lengths, in tokens.
std::vector<TrainSample> samples_of(std::span<const size_t> lengths) {
  std::vector<TrainSample> samples;
  for (const size_t length : lengths)
    samples.push_back({.tokens = std::vector<int32_t>(length, 5),
                       .response_length = 3,
                       .loss_mask = {1, 1, 1},
                       .old_log_probs = {-5, -5, -5},
                       .ref_log_probs = {},
                       .advantages = {1, 1, 1}});
  return samples;
}

TEST(KeptActivations, OfTheLargestStepAreAsManyAsWasSaidHoweverItIsPacked) {
  // Up to 400 tokens in 12 samples: the most micro-batches that can be, the fewest, and ten.
  const std::vector<std::vector<size_t>> steps = {std::vector<size_t>(12, 33),
                                                  {48, 48, 48, 48, 48, 48, 48, 48, 16},
                                                  std::vector<size_t>(10, 40)};
  for (const ActorPlacement placement : kPlacements) {
    ActorOptions options = actor_options(placement);
    options.recompute_num_layers = 1;
    ActorRig rig(deep_config(DType::bf16), options);
    rig.actor.onload();
    for (const std::vector<size_t>& lengths : steps) {
      const StepResult whole = rig.actor.train_step(samples_of(lengths), {});
      EXPECT_GE(whole.kept_blocks, int64_t{3} * whole.micro_batches);
      EXPECT_LT(whole.kept_blocks, int64_t{4} * whole.micro_batches);
      // The same memory holds all of half a step.
      const StepResult half =
          rig.actor.train_step(samples_of(std::span(lengths).first(lengths.size() / 2)), {});
      EXPECT_EQ(half.kept_blocks, int64_t{4} * half.micro_batches);
    }
  }
}

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
