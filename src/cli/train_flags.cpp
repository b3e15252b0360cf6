#include "cli/flags.h"

namespace miles {
namespace {

constexpr double kBelowOne = 0.999999;  // a moment that never forgets has no bias correction

void add_prompt_flags(CLI::App& app, TrainConfig& config) {
  const std::string group = "Data";
  app.add_option("--prompt-data", config.data.path,
                 "prompts: FILE.jsonl, FILE.jsonl@[a:b], or synthetic:addition")
      ->group(group)
      ->required();
  app.add_flag("--rollout-shuffle", config.data.shuffle, "a new order of prompts in each epoch")
      ->group(group);
}

void add_rollout_flags(CLI::App& app, TrainConfig& config, BatchSizeFlags& batch) {
  const std::string group = "Rollout";
  RolloutConfig& rollout = config.rollout;
  app.add_option("--num-rollout", config.num_rollout, "rollouts in all")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--num-epoch", config.num_epoch, "passes over the data, instead")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--rollout-batch-size,--batch-size", batch.rollout_batch_size, "prompts a rollout")
      ->group(group);
  app.add_option("--n-samples-per-prompt", batch.n_samples_per_prompt,
                 "samples a prompt (default 8; 1 for sft_loss)")
      ->group(group);
  app.add_option("--rollout-temperature", rollout.temperature, "")
      ->check(CLI::NonNegativeNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--rollout-top-p", rollout.top_p, "")
      ->check(CLI::Range(0.0, 1.0))
      ->group(group)
      ->capture_default_str();
  app.add_option("--rollout-top-k", rollout.top_k, "-1: all")
      ->check(CLI::Range(-1, INT32_MAX))
      ->group(group)
      ->capture_default_str();
  app.add_option("--rollout-min-p", rollout.min_p, "")
      ->check(CLI::Range(0.0, 1.0))
      ->group(group)
      ->capture_default_str();
  app.add_option("--rollout-stop", rollout.stop, "strings that end a response")
      ->take_all()
      ->group(group);
  app.add_option("--rollout-stop-token-ids", rollout.stop_token_ids, "ids that end a response")
      ->check(CLI::Range(0, INT32_MAX))
      ->take_all()
      ->group(group);
  app.add_flag("--rollout-ignore-eos", rollout.ignore_eos,
               "the model's end does not end a response")
      ->group(group);
  add_skip_special_tokens_flag(app, rollout);
  app.add_option("--rollout-max-prompt-len", rollout.max_prompt_len,
                 "tokens; longer prompts are skipped")
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--rollout-max-response-len", rollout.max_response_len, "tokens")
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--rollout-max-context-len", rollout.max_context_len,
                 "tokens of prompt and response")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--rollout-seed", rollout.seed, "of the prompts' order and the draws")
      ->group(group)
      ->capture_default_str();
}

void add_eval_timing_flags(CLI::App& app, EvalConfig& config) {
  const std::string group = "Evaluation";
  app.add_option("--eval-interval", config.interval, "rollouts between evaluations")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_flag("--skip-eval-before-train", config.skip_before_train, "")->group(group);
}

void add_optimizer_flags(CommandLine& line, TrainConfig& config, BatchSizeFlags& batch) {
  CLI::App& app = line.app();
  const std::string group = "Optimizer";
  OptimizerConfig& optimizer = config.optimizer;
  app.add_option("--global-batch-size", batch.global_batch_size, "samples an optimizer step")
      ->group(group);
  app.add_option("--num-steps-per-rollout", batch.num_steps_per_rollout,
                 "optimizer steps a rollout")
      ->group(group);
  app.add_option("--max-tokens-per-gpu", config.max_tokens_per_gpu,
                 "tokens a micro-batch (default: chosen)")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--recompute-num-layers", config.recompute_num_layers,
                 "the first N blocks are computed again in the backward, the others keep their "
                 "activations (default: as few as the memory allows; see docs/architecture.md)")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app.add_option("--log-probs-chunk-size", config.log_probs_chunk_size,
                 "rows of logits at a time; -1: chosen")
      ->group(group)
      ->capture_default_str();
  app.add_option("--lr", optimizer.lr, "")
      ->check(CLI::NonNegativeNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--min-lr", optimizer.min_lr, "")
      ->check(CLI::NonNegativeNumber)
      ->group(group)
      ->capture_default_str();
  line.choice<LrDecayStyle>("--lr-decay-style", optimizer.lr_decay_style,
                            {{"constant", LrDecayStyle::constant},
                             {"linear", LrDecayStyle::linear},
                             {"cosine", LrDecayStyle::cosine}},
                            "")
      ->group(group);
  app.add_option("--lr-warmup-iters", optimizer.lr_warmup_iters, "optimizer steps")
      ->check(CLI::NonNegativeNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--lr-decay-iters", optimizer.lr_decay_iters,
                 "optimizer steps (default: the run's)")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--weight-decay", optimizer.weight_decay, "of matrices")
      ->check(CLI::NonNegativeNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--adam-beta1", optimizer.adam_beta1, "")
      ->check(CLI::Range(0.0, kBelowOne))
      ->group(group)
      ->capture_default_str();
  app.add_option("--adam-beta2", optimizer.adam_beta2, "")
      ->check(CLI::Range(0.0, kBelowOne))
      ->group(group)
      ->capture_default_str();
  app.add_option("--adam-eps", optimizer.adam_eps, "")
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--clip-grad", optimizer.clip_grad, "largest global norm; 0: no clipping")
      ->check(CLI::NonNegativeNumber)
      ->group(group)
      ->capture_default_str();
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
                                  {{"grpo", AdvantageEstimator::grpo}}, "")
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
  app.add_option("--eps-clip", policy.eps_clip, "")->group(group)->capture_default_str();
  app.add_option("--eps-clip-high", policy.eps_clip_high, "default: --eps-clip")->group(group);
  app.add_option("--eps-clip-c", policy.eps_clip_c, "dual clip")->group(group);
  app.add_option("--entropy-coef", policy.entropy_coef, "")->group(group)->capture_default_str();
  app.add_flag("--use-kl-loss", policy.use_kl_loss, "KL to a frozen reference in the loss")
      ->group(group);
  app.add_option("--kl-loss-coef", policy.kl_loss_coef, "")->group(group)->capture_default_str();
  line.choice<KlLossType>("--kl-loss-type", policy.kl_loss_type,
                          {{"k1", KlLossType::k1},
                           {"k2", KlLossType::k2},
                           {"k3", KlLossType::k3},
                           {"low_var_kl", KlLossType::low_var_kl}},
                          "")
      ->group(group);
  app.add_option("--ref-load", config.ref_load,
                 "Hugging Face directory of the reference (default: the first weights)")
      ->group(group);
  app.add_flag("--use-rollout-logprobs", config.use_rollout_logprobs,
               "take the ratio against the rollout's log-probs")
      ->group(group);
  app.add_flag("--skip-actor-forward-only", config.skip_actor_forward_only,
               "with it: no log-prob pass before training")
      ->group(group);
}

void add_colocate_flags(CommandLine& line, ColocateConfig& config) {
  CLI::App& app = line.app();
  const std::string group = "Device and memory";
  app.add_flag("--colocate", config.colocate, "turns both offloads on")->group(group);
  app.add_flag("--offload-train,!--no-offload-train", config.handoff.offload_train,
               "the trainer leaves the device while the engine has its turn")
      ->group(group);
  app.add_flag("--offload-rollout,!--no-offload-rollout", config.handoff.offload_rollout,
               "the engine leaves while the trainer has its turn")
      ->group(group);
  line.choice<PeakDevice>("--colocate-memory-peak-device", config.handoff.peak_device,
                          {{"cpu", PeakDevice::cpu}, {"gpu", PeakDevice::gpu}},
                          "where the two overlap at a handoff; gpu: the trainer streams its blocks")
      ->group(group);
  app.add_flag("--check-weight-update-equal", config.handoff.check_weight_update_equal,
               "poison the engine's weights, update, compare every tensor")
      ->group(group);
  app.add_flag("--use-critic", config.use_critic, "not implemented")->group("");
  app.add_option("--lora-rank", config.lora_rank, "not implemented")->group("");
}

void add_checkpoint_flags(CLI::App& app, TrainConfig& config) {
  const std::string group = "Checkpoints and records";
  CheckpointConfig& checkpoint = config.checkpoint;
  app.add_option("--save", checkpoint.save,
                 "directory for checkpoints; one with another run's is refused")
      ->group(group);
  app.add_option("--save-interval", checkpoint.save_interval, "rollouts; the last is always saved")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--save-total-limit", checkpoint.save_total_limit, "checkpoints to keep; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--load", checkpoint.load, "go on from the newest complete checkpoint there")
      ->group(group);
  app.add_option("--run-dir", config.run_dir,
                 "metrics.jsonl, memory.jsonl, samples.jsonl, config.toml, report.html; without "
                 "--load, those of an earlier run move to previous-N/ there")
      ->group(group);
  app.add_option("--debug-exit-after-rollout", config.debug_exit_after_rollout, "end early")
      ->group(group);
}

}  // namespace

void add_train_flags(CommandLine& line, TrainConfig& config, BatchSizeFlags& batch) {
  CLI::App& app = line.app();
  add_model_flags(line, config.model);
  add_prompt_flags(app, config);
  add_data_flags(line, config.data);
  add_rollout_flags(app, config, batch);
  add_engine_flags(line, config.engine);
  add_reward_flags(line, config.reward);
  add_optimizer_flags(line, config, batch);
  add_algorithm_flags(line, config.algorithm);
  add_eval_set_flags(line, config.eval);
  add_eval_timing_flags(app, config.eval);
  add_device_flags(line, config.device);
  add_colocate_flags(line, config.colocate);
  add_checkpoint_flags(app, config);
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
