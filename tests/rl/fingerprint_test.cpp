#include "rl/fingerprint.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace miles {
namespace {

/// What of a run its fingerprint is made from.
struct Job {
  TrainConfig config;
  ModelConfig model;
  LrSchedule schedule{.style = LrDecayStyle::constant, .decay_steps = 100};
};

Job some_job() {
  Job job;
  job.config.batch = {.rollout_batch_size = 2,
                      .n_samples_per_prompt = 4,
                      .global_batch_size = 8,
                      .num_steps_per_rollout = 1};
  return job;
}

/// As a checkpoint gives it back.
nlohmann::json saved(const Job& job) {
  return nlohmann::json::parse(fingerprint(job.config, job.model, job.schedule).dump());
}

/// Empty when the second may go on from the first.
std::string refusal(const Job& before, const Job& now) {
  try {
    check_fingerprint(saved(before), fingerprint(now.config, now.model, now.schedule),
                      "ckpt/iter_3");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    return error.what();
  }
  return "";
}

using Change = std::function<void(Job&)>;

TEST(Fingerprint, ARunMayGoOnAsItWas) {
  EXPECT_EQ(refusal(some_job(), some_job()), "");
}

TEST(Fingerprint, WhatChangesTheNumbersIsNamed) {
  const std::vector<std::pair<std::string, Change>> changes = {
      {"hidden_size", [](Job& job) { job.model.hidden_size = 64; }},
      {"--dtype", [](Job& job) { job.model.dtype = DType::bf16; }},
      {"--label-key", [](Job& job) { job.config.data.label_key = "answer"; }},
      {"--rollout-batch-size", [](Job& job) { job.config.batch.rollout_batch_size = 4; }},
      {"--n-samples-per-prompt", [](Job& job) { job.config.batch.n_samples_per_prompt = 2; }},
      {"--global-batch-size", [](Job& job) { job.config.batch.global_batch_size = 4; }},
      {"--num-steps-per-rollout", [](Job& job) { job.config.batch.num_steps_per_rollout = 2; }},
      {"--rollout-temperature", [](Job& job) { job.config.rollout.temperature = 0.5; }},
      {"--no-true-on-policy", [](Job& job) { job.config.engine.true_on_policy = false; }},
      {"--rm-type", [](Job& job) { job.config.reward.rule.type = RmType::math; }},
      {"--custom-rm-command", [](Job& job) { job.config.reward.custom_rm_command = "cat"; }},
      {"--loss-type", [](Job& job) { job.config.algorithm.loss.type = LossType::sft_loss; }},
      {"--eps-clip-high", [](Job& job) { job.config.algorithm.loss.policy.eps_clip_high = 0.3F; }},
      {"--use-kl-loss", [](Job& job) { job.config.algorithm.loss.policy.use_kl_loss = true; }},
      {"--lr", [](Job& job) { job.schedule.lr = 0.5; }},
      {"--lr-decay-style", [](Job& job) { job.schedule.style = LrDecayStyle::cosine; }},
      {"--adam-beta2", [](Job& job) { job.config.optimizer.adam_beta2 = 0.95; }},
      {"--clip-grad", [](Job& job) { job.config.optimizer.clip_grad = 0; }},
  };
  for (const auto& [key, change] : changes) {
    Job now = some_job();
    change(now);
    const std::string message = refusal(some_job(), now);
    EXPECT_NE(message.find(key + " was "), std::string::npos) << key << ": " << message;
  }
}

TEST(Fingerprint, TheErrorShowsBothValuesAndWhatToDo) {
  Job now = some_job();
  now.config.algorithm.loss.policy.eps_clip = 0.3F;
  EXPECT_EQ(
      refusal(some_job(), now),
      "--load ckpt/iter_3: --eps-clip was 0.2 when it was saved and is 0.3 now; give it as it "
      "was to go on, or leave out --load and begin a new run from those weights: "
      "--hf-checkpoint ckpt/iter_3/hf");
}

TEST(Fingerprint, WhatPeopleChangeOnTheWayIsFree) {
  Job now = some_job();
  now.config.num_rollout = 1000;
  now.config.rollout.max_response_len = 4096;
  now.config.eval.interval = 5;
  now.config.checkpoint.save_interval = 5;
  now.config.run_dir = "elsewhere";
  now.config.max_tokens_per_gpu = 1234;
  now.config.colocate.handoff.offload_train = true;
  now.config.device.gpu_memory_budget = 1 << 30;
  EXPECT_EQ(refusal(some_job(), now), "");
}

TEST(Fingerprint, WhatOnlyRoundsDifferentlyIsSaid) {
  Job before = some_job(), now = some_job();
  before.config.max_tokens_per_gpu = 1000;
  now.config.max_tokens_per_gpu = 2000;
  now.config.log_probs_chunk_size = 64;
  const nlohmann::json then = rounding_fingerprint(before.config, "a card");
  EXPECT_TRUE(rounding_differences(then, rounding_fingerprint(before.config, "a card")).empty());
  const auto lines = rounding_differences(then, rounding_fingerprint(now.config, "another"));
  ASSERT_EQ(lines.size(), 3);
  EXPECT_TRUE(lines[0].starts_with("--max-tokens-per-gpu was 1000 when it was saved and is 2000"));
  EXPECT_TRUE(lines[1].starts_with("--log-probs-chunk-size was -1"));
  EXPECT_TRUE(lines[2].starts_with("device was \"a card\""));
  // A checkpoint that does not know it says nothing.
  EXPECT_TRUE(rounding_differences({}, rounding_fingerprint(now.config, "a card")).empty());
}

TEST(Fingerprint, TheLogProbsOfTheRolloutCountOnlyWhereTheyMayDiffer) {
  Job before = some_job(), now = some_job();
  now.config.algorithm.use_rollout_logprobs = true;
  EXPECT_EQ(refusal(before, now), "");
  before.config.engine.true_on_policy = now.config.engine.true_on_policy = false;
  EXPECT_NE(refusal(before, now).find("--use-rollout-logprobs was false"), std::string::npos);
}

TEST(Fingerprint, TheLengthOfTheDecayCountsOnlyWhereTheRateDecays) {
  Job before = some_job(), now = some_job();
  now.schedule.decay_steps = 200;  // a longer run
  EXPECT_EQ(refusal(before, now), "");
  before.schedule.style = now.schedule.style = LrDecayStyle::linear;
  EXPECT_NE(refusal(before, now).find("--lr-decay-iters was 100 when it was saved and is 200 now"),
            std::string::npos);
}

TEST(Fingerprint, KnowsTheReferenceByItsWeights) {
  std::vector<float> weights(101, 0.5F);
  const auto entry = [&] {
    return reference_fingerprint(Tensor(weights.data(), DType::f32, {101}));
  };
  const auto first = entry();
  EXPECT_EQ(entry(), first);
  for (const size_t i : {0, 1, 50, 99, 100}) {
    weights[i] = -weights[i];  // the sign: a word's highest bit
    EXPECT_NE(entry(), first) << i;
    EXPECT_THROW(check_fingerprint(nlohmann::json(first), entry(), "ckpt"), Error);
    // The odd ones stay: two signs must not cancel.
    if (i % 2 == 0) weights[i] = -weights[i];
  }
}

}  // namespace
}  // namespace miles
