#include "cli/flags.h"

namespace miles {
namespace {

constexpr double kBelowOne = 0.999999;  // a moment that never forgets has no bias correction
constexpr int64_t kMostSamples = 1'000'000'000;  // resolve_batch_sizes()

void add_data_flags(CommandLine& line, TrainConfig& config, BatchSizeFlags& batch) {
  CLI::App& app = line.app();
  app.add_option("--prompt-data", config.data.path,
                 "prompts: FILE.jsonl, FILE.jsonl@[a:b] for rows a to b-1, or "
                 "synthetic:addition?max=99&count=10000")
      ->type_name("PATH")
      ->group(kDataGroup)
      ->required();
  add_row_flags(line, config.data);
  app.add_flag("--rollout-shuffle", config.data.shuffle, "a new order of prompts in each epoch")
      ->group(kDataGroup);
  line.number<int64_t>("--num-rollout", config.num_rollout, {.least = 1},
                       "rollouts in all; this or --num-epoch")
      ->group(kDataGroup);
  line.number<int64_t>("--num-epoch", config.num_epoch, {.least = 1},
                       "passes over the data; this or --num-rollout")
      ->group(kDataGroup);
  const Range<int64_t> samples = {.least = 1, .most = kMostSamples};
  line.number("--rollout-batch-size,--batch-size", batch.rollout_batch_size, samples,
              "prompts a rollout (default: it follows from --global-batch-size)")
      ->group(kDataGroup);
  line.number("--n-samples-per-prompt", batch.n_samples_per_prompt, samples,
              "samples a prompt (default: 8; 1 for sft_loss)")
      ->group(kDataGroup);
  line.number("--global-batch-size", batch.global_batch_size, samples,
              "samples an optimizer step (default: a rollout's by its steps)")
      ->group(kDataGroup);
  line.number("--num-steps-per-rollout", batch.num_steps_per_rollout, samples,
              "optimizer steps a rollout (default: 1, or as --global-batch-size says)")
      ->group(kDataGroup);
  line.number<int64_t>("--max-tokens-per-gpu", config.max_tokens_per_gpu, {.least = 1},
                       "tokens of a micro-batch (default: chosen, and printed)")
      ->group(kDataGroup);
  line.number<int64_t>("--recompute-num-layers", config.recompute_num_layers, {},
                       "the first N blocks are computed again in the backward, the others keep "
                       "their activations (default: as few as --gpu-memory-budget, or a GPU's free "
                       "memory, holds beside the state that stays with gpu peak; else all that "
                       "would raise the peak)")
      ->group(kDataGroup);
}

void add_rollout_flags(CommandLine& line, RolloutConfig& rollout) {
  CLI::App& app = line.app();
  const std::string group = "Rollout";
  line.number<double>("--rollout-temperature", rollout.temperature, {},
                      "logits are divided by it, in training too")
      ->group(group);
  line.number<double>("--rollout-top-p", rollout.top_p, {.most = 1},
                      "draw from the fewest tokens that have this probability")
      ->group(group);
  line.number<int32_t>("--rollout-top-k", rollout.top_k, {.least = -1, .most = INT32_MAX},
                       "draw from this many tokens; -1: from all")
      ->group(group);
  line.number<double>("--rollout-min-p", rollout.min_p, {.most = 1},
                      "draw no token with less than this share of the likeliest one's probability")
      ->group(group);
  line.texts("--rollout-stop", rollout.stop, "strings that end a response")->group(group);
  line.numbers("--rollout-stop-token-ids", rollout.stop_token_ids, {.most = INT32_MAX},
               "token ids that end a response")
      ->group(group);
  app.add_flag("--rollout-ignore-eos", rollout.ignore_eos,
               "the model's end does not end a response")
      ->group(group);
  add_any_rollout_flags(line, rollout);
  line.number<int64_t>("--rollout-max-response-len", rollout.max_response_len, {.least = 1},
                       "tokens of a response")
      ->group(group);
  line.number<int64_t>("--rollout-max-context-len", rollout.max_context_len, {.least = 1},
                       "tokens of prompt and response together (default: the model's context)")
      ->group(group);
}

void add_eval_timing_flags(CommandLine& line, EvalConfig& config) {
  const std::string group = "Evaluation";
  line.number<int64_t>("--eval-interval", config.interval, {.least = 1},
                       "rollouts between evaluations (default: never)")
      ->group(group);
  line.app()
      .add_flag("--skip-eval-before-train", config.skip_before_train,
                "the first evaluation comes after --eval-interval rollouts, not before them")
      ->group(group);
}

void add_optimizer_flags(CommandLine& line, OptimizerConfig& optimizer) {
  const std::string group = "Optimizer";
  line.number<double>("--lr", optimizer.lr, {}, "learning rate of AdamW")->group(group);
  line.number<double>("--min-lr", optimizer.min_lr, {}, "learning rate at the end of the decay")
      ->group(group);
  line.choice<LrDecayStyle>("--lr-decay-style", optimizer.lr_decay_style,
                            {{"constant", LrDecayStyle::constant},
                             {"linear", LrDecayStyle::linear},
                             {"cosine", LrDecayStyle::cosine}},
                            "how the learning rate falls after the warm-up")
      ->group(group);
  line.number<int64_t>("--lr-warmup-iters", optimizer.lr_warmup_iters, {},
                       "optimizer steps in which the learning rate rises to --lr")
      ->group(group);
  line.number<int64_t>("--lr-decay-iters", optimizer.lr_decay_iters, {.least = 1},
                       "optimizer steps to --min-lr, the warm-up included (default: the run's)")
      ->group(group);
  line.number<double>("--weight-decay", optimizer.weight_decay, {}, "of matrices, a step, × --lr")
      ->group(group);
  line.number<double>("--adam-beta1", optimizer.adam_beta1, {.most = kBelowOne},
                      "decay of the gradients' mean")
      ->group(group);
  line.number<double>("--adam-beta2", optimizer.adam_beta2, {.most = kBelowOne},
                      "decay of the gradients' mean square")
      ->group(group);
  line.number<double>("--adam-eps", optimizer.adam_eps, {.above_least = true},
                      "added to the root of the mean square")
      ->group(group);
  line.number<double>("--clip-grad", optimizer.clip_grad, {},
                      "largest global norm of the gradient; 0: no clipping")
      ->group(group);
}

void add_algorithm_flags(CommandLine& line, AlgorithmConfig& config) {
  CLI::App& app = line.app();
  const std::string group = "Algorithm";
  PolicyLossOptions& policy = config.loss.policy;
  line.choice<LossType>("--loss-type", config.loss.type,
                        {{"policy_loss", LossType::policy_loss}, {"sft_loss", LossType::sft_loss}},
                        "sft_loss: learn the labels, generate nothing")
      ->group(group);
  line.choice<AdvantageEstimator>("--advantage-estimator", config.advantage_estimator,
                                  {{"grpo", AdvantageEstimator::grpo}},
                                  "grpo: a reward against those of the prompt's other samples")
      ->group(group);
  app.add_flag("!--disable-grpo-std-normalization", config.grpo_std_normalization,
               "do not divide by the group's deviation (Dr. GRPO)")
      ->group(group);
  app.add_flag("!--disable-rewards-normalization", config.rewards_normalization,
               "raw rewards as advantages")
      ->group(group);
  app.add_flag("--calculate-per-token-loss", config.loss.calculate_per_token_loss,
               "mean over tokens instead of samples' means")
      ->group(group);
  line.number<float>("--eps-clip", policy.eps_clip, {.most = 1},
                     "the ratio of probabilities is clipped at 1 - this")
      ->group(group);
  line.number<float>("--eps-clip-high", policy.eps_clip_high, {},
                     "and at 1 + this (default: --eps-clip)")
      ->group(group);
  line.number<float>("--eps-clip-c", policy.eps_clip_c, {.least = 1},
                     "dual clip: a loss is at most this × its advantage's size (default: none)")
      ->group(group);
  line.number<float>("--entropy-coef", policy.entropy_coef, {.least = -1e30F},
                     "the loss has - this × entropy")
      ->group(group);
  app.add_flag("--use-kl-loss", policy.use_kl_loss,
               "the loss has + --kl-loss-coef × KL to a frozen reference")
      ->group(group);
  line.number<float>("--kl-loss-coef", policy.kl_loss_coef, {}, "see --use-kl-loss")->group(group);
  line.choice<KlLossType>("--kl-loss-type", policy.kl_loss_type,
                          {{"k1", KlLossType::k1},
                           {"k2", KlLossType::k2},
                           {"k3", KlLossType::k3},
                           {"low_var_kl", KlLossType::low_var_kl}},
                          "how the KL is estimated")
      ->group(group);
  app.add_option("--ref-load", config.ref_load,
                 "Hugging Face directory of the reference (default: the first weights)")
      ->type_name("DIR")
      ->group(group);
  app.add_flag("--use-rollout-logprobs", config.use_rollout_logprobs,
               "take the ratio against the rollout's log-probs")
      ->group(group);
  app.add_flag("--skip-actor-forward-only", config.skip_actor_forward_only,
               "with --use-rollout-logprobs: no log-prob pass before training")
      ->group(group);
}

void add_memory_flags(CommandLine& line, TrainConfig& train) {
  CLI::App& app = line.app();
  ColocateConfig& config = train.colocate;
  const std::string group = "Device and memory";
  app.add_flag("--colocate", config.colocate,
               "trainer and engine take turns on the device: turns both offloads on")
      ->group(group);
  app.add_flag("--offload-train,!--no-offload-train", config.handoff.offload_train,
               "the trainer leaves the device while the engine has its turn")
      ->group(group);
  app.add_flag("--offload-rollout,!--no-offload-rollout", config.handoff.offload_rollout,
               "the engine leaves while the trainer has its turn")
      ->group(group);
  line.choice<PeakDevice>("--colocate-memory-peak-device", config.handoff.peak_device,
                          {{"cpu", PeakDevice::cpu}, {"gpu", PeakDevice::gpu}},
                          "where the two overlap at a handoff; gpu: the trainer streams what "
                          "--gpu-memory-budget has no room for")
      ->group(group);
  line.number<int64_t>("--log-probs-chunk-size", train.log_probs_chunk_size, {.least = -1},
                       "rows of logits held at a time, in memory that blocks have anyway as far "
                       "as it goes; decides how sums round; -1: chosen")
      ->group(group);
  app.add_flag("--check-weight-update-equal", config.handoff.check_weight_update_equal,
               "poison the engine's weights, update, compare every tensor")
      ->group(group);
  app.add_flag("--use-critic", config.use_critic, "not implemented")->group("");
  line.number<int64_t>("--lora-rank", config.lora_rank, {}, "not implemented")->group("");
}

void add_checkpoint_flags(CommandLine& line, TrainConfig& config) {
  CLI::App& app = line.app();
  const std::string group = "Checkpoints and records";
  CheckpointConfig& checkpoint = config.checkpoint;
  app.add_option("--save", checkpoint.save,
                 "directory for checkpoints; one with another run's is refused (default: nothing "
                 "is saved)")
      ->type_name("DIR")
      ->group(group);
  line.number<int64_t>("--save-interval", checkpoint.save_interval, {.least = 1},
                       "rollouts between checkpoints; the last is always saved (default: only "
                       "that)")
      ->group(group);
  line.number<int64_t>("--save-total-limit", checkpoint.save_total_limit, {},
                       "checkpoints to keep; 0: all")
      ->group(group);
  app.add_option("--load", checkpoint.load,
                 "go on from the newest complete checkpoint there (default: a new run)")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--run-dir", config.run_dir,
                 "directory for metrics.jsonl, memory.jsonl, samples.jsonl, config.toml, "
                 "report.html; those of another run move to previous-N/ there (default: nothing "
                 "is recorded)")
      ->type_name("DIR")
      ->group(group);
  line.number<int64_t>(
          "--debug-exit-after-rollout", config.debug_exit_after_rollout, {.least = 1},
          "end after this many rollouts in all, --num-rollout unchanged (default: never)")
      ->group(group);
}

}  // namespace

void add_train_flags(CommandLine& line, TrainConfig& config, BatchSizeFlags& batch) {
  add_model_flags(line, config.model);
  add_data_flags(line, config, batch);
  add_rollout_flags(line, config.rollout);
  add_engine_flags(line, config.engine);
  add_reward_flags(line, config.reward);
  add_algorithm_flags(line, config.algorithm);
  add_optimizer_flags(line, config.optimizer);
  add_eval_set_flags(line, config.eval);
  add_eval_timing_flags(line, config.eval);
  add_device_flags(line, config.device);
  add_memory_flags(line, config);
  add_checkpoint_flags(line, config);
}

void finish_train_flags(CommandLine& line, TrainConfig& config, BatchSizeFlags& batch) {
  HandoffOptions& handoff = config.colocate.handoff;
  if (config.colocate.colocate) {
    // An explicit --no-offload-… stands.
    if (line.app().get_option("--offload-train")->empty()) handoff.offload_train = true;
    if (line.app().get_option("--offload-rollout")->empty()) handoff.offload_rollout = true;
  }
  config.data.seed = config.rollout.seed;
  batch.use = config.algorithm.loss.type == LossType::sft_loss ? SampleUse::alone
                                                               : SampleUse::compared_in_groups;
  config.batch = resolve_batch_sizes(batch);
}

}  // namespace miles
