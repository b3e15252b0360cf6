#include "rl/training_turn.h"

#include <cmath>

#include "base/clock.h"
#include "base/log.h"

namespace miles {
namespace {

std::vector<TrainSample> to_train_samples(std::span<const Sample> samples,
                                          std::span<const float> advantages) {
  std::vector<TrainSample> result;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Sample& sample = samples[i];
    const auto length = static_cast<size_t>(sample.response_length);
    result.push_back({.tokens = sample.tokens,
                      .response_length = sample.response_length,
                      .loss_mask = sample.loss_mask,
                      .old_log_probs = sample.rollout_log_probs,
                      .ref_log_probs = {},
                      .advantages = std::vector<float>(length, advantages[i])});
  }
  return result;
}

/// Mean over the tokens that count, of `value(sample, position)`.
template <class Value>
Mean masked_mean(std::span<const TrainSample> samples, const Value& value) {
  Mean mean;
  for (size_t s = 0; s < samples.size(); ++s)
    for (size_t i = 0; i < samples[s].loss_mask.size(); ++i)
      if (samples[s].loss_mask[i] != 0) mean.add(value(s, i));
  return mean;
}

class Turn {
 public:
  Turn(ActorModel& actor, const TrainConfig& config, std::span<const Sample> samples,
       std::span<const float> advantages)
      : actor_(actor),
        config_(config),
        originals_(samples),
        samples_(to_train_samples(samples, advantages)) {}

  Metrics run() {
    const bool policy = config_.algorithm.loss.type == LossType::policy_loss;
    if (policy) score();
    train();
    return std::move(metrics_);
  }

 private:
  std::span<TrainSample> step_samples(int64_t step) {
    const auto size = static_cast<size_t>(config_.batch.global_batch_size);
    return std::span(samples_).subspan(static_cast<size_t>(step) * size, size);
  }

  /// Log-probs of all samples under one policy, a step's worth at a time.
  std::vector<std::vector<float>> log_probs(Policy policy) {
    std::vector<std::vector<float>> all;
    const auto temperature = static_cast<float>(config_.rollout.temperature);
    for (int64_t step = 0; step < config_.batch.num_steps_per_rollout; ++step) {
      auto part = actor_.log_probs(policy, step_samples(step), temperature);
      std::move(part.begin(), part.end(), std::back_inserter(all));
    }
    return all;
  }

  void score() {
    const AlgorithmConfig& algorithm = config_.algorithm;
    Stopwatch watch;
    if (algorithm.needs_reference()) {
      auto reference = log_probs(Policy::reference);
      for (size_t s = 0; s < samples_.size(); ++s)
        samples_[s].ref_log_probs = std::move(reference[s]);
      metrics_.set("perf/ref_log_probs_time", watch.seconds());
      metrics_.set("rollout/ref_log_probs", masked_mean(samples_, [&](size_t s, size_t i) {
                                              return samples_[s].ref_log_probs[i];
                                            }).mean());
      watch.reset();
    }
    metrics_.set("rollout/rollout_log_probs", masked_mean(samples_, [&](size_t s, size_t i) {
                                                return originals_[s].rollout_log_probs[i];
                                              }).mean());
    if (algorithm.use_rollout_logprobs && algorithm.skip_actor_forward_only) return;
    const auto actor = log_probs(Policy::actor);
    metrics_.set("perf/log_probs_time", watch.seconds());
    metrics_.set("rollout/log_probs",
                 masked_mean(samples_, [&](size_t s, size_t i) { return actor[s][i]; }).mean());
    const Mean difference = masked_mean(samples_, [&](size_t s, size_t i) {
      const float ours = actor[s][i], theirs = originals_[s].rollout_log_probs[i];
      return ours == theirs ? 0.0 : std::fabs(static_cast<double>(ours) - theirs);
    });
    metrics_.set("train/train_rollout_logprob_abs_diff", difference.mean());
    if (config_.engine.true_on_policy && difference.count() > 0 && difference.mean() != 0)
      log::warn(
          "train/train_rollout_logprob_abs_diff is {}, not 0: rollout and training differ on this "
          "device; please report it",
          difference.mean());
    if (algorithm.use_rollout_logprobs) return;
    for (size_t s = 0; s < samples_.size(); ++s) samples_[s].old_log_probs = actor[s];
  }

  void train() {
    LossOptions loss = config_.algorithm.loss;
    loss.temperature =
        loss.type == LossType::policy_loss ? static_cast<float>(config_.rollout.temperature) : 1.0F;
    const Stopwatch watch;
    Mean total, pg, kl, entropy, clipped, ppo_kl, norm;
    int64_t tokens = 0, skipped = 0;
    StepResult last;
    for (int64_t step = 0; step < config_.batch.num_steps_per_rollout; ++step) {
      last = actor_.train_step(step_samples(step), loss);
      total.add(last.loss.loss);
      pg.add(last.loss.pg_loss);
      kl.add(last.loss.kl_loss);
      entropy.add(last.loss.entropy_loss);
      clipped.add(last.loss.pg_clipfrac);
      ppo_kl.add(last.loss.ppo_kl);
      norm.add(last.grad_norm);
      tokens += last.tokens;
      skipped += last.skipped ? 1 : 0;
    }
    const double seconds = watch.seconds();
    metrics_.set("train/loss", total.mean());
    if (loss.type == LossType::policy_loss) {
      metrics_.set("train/pg_loss", pg.mean());
      metrics_.set("train/pg_clipfrac", clipped.mean());
      metrics_.set("train/ppo_kl", ppo_kl.mean());
      if (loss.policy.use_kl_loss) metrics_.set("train/kl_loss", kl.mean());
    }
    metrics_.set("train/entropy_loss", entropy.mean());
    metrics_.set("train/grad_norm", norm.mean());
    metrics_.set("train/lr-pg_0", last.learning_rate);
    metrics_.set("train/skipped_steps", static_cast<double>(skipped));
    metrics_.set("perf/actor_train_time", seconds);
    metrics_.set("perf/actor_train_tok_per_s", static_cast<double>(tokens) / seconds);
  }

  ActorModel& actor_;
  const TrainConfig& config_;
  std::span<const Sample> originals_;
  std::vector<TrainSample> samples_;
  Metrics metrics_;
};

}  // namespace

Metrics training_turn(ActorModel& actor, const TrainConfig& config, std::span<const Sample> samples,
                      std::span<const float> advantages) {
  return Turn(actor, config, samples, advantages).run();
}

}  // namespace miles
