// All that `miles train` is told, by part. Flags and defaults are Miles' where it has them; src/cli
// binds every flag once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actor/loss.h"
#include "actor/lr_schedule.h"
#include "colocate/handoff.h"
#include "model/source.h"
#include "rl/advantages.h"
#include "rl/batch_sizes.h"
#include "rl/prompt.h"
#include "rl/reward.h"

namespace miles {

/// Where the program computes.
enum class DeviceChoice { automatic, cpu, cuda };

struct DeviceConfig {
  DeviceChoice device = DeviceChoice::automatic;  // --device
  std::optional<int64_t> gpu_memory_budget;  // --gpu-memory-budget, bytes; none: all that is free
  std::optional<int64_t>
      host_memory_budget;  // --host-memory-budget, bytes; none: all that the host has
};

/// --rollout-*: how responses are drawn; --eval-* override them where given.
struct RolloutConfig {
  double temperature = 1.0;             // --rollout-temperature
  double top_p = 1.0;                   // --rollout-top-p
  int32_t top_k = -1;                   // --rollout-top-k; -1: all
  double min_p = 0;                     // --rollout-min-p
  std::vector<std::string> stop;        // --rollout-stop: stop strings
  std::vector<int32_t> stop_token_ids;  // --rollout-stop-token-ids
  bool ignore_eos = false;              // --rollout-ignore-eos
  bool skip_special_tokens = false;     // --rollout-skip-special-tokens: not in a response's text
  int64_t max_prompt_len = 512;    // --rollout-max-prompt-len, tokens: longer prompts are skipped
  int64_t max_response_len = 256;  // --rollout-max-response-len, tokens
  std::optional<int64_t> max_context_len;  // --rollout-max-context-len, tokens: prompt and response
  uint64_t seed = 42;                      // --rollout-seed: order of prompts and draws
};

/// The engine, SGLang's names.
struct EngineConfig {
  std::optional<int64_t>
      max_total_tokens;  // --max-total-tokens: KV cache; none: max_running_requests full samples
  std::optional<int64_t> max_running_requests;  // --max-running-requests; none: by device
  std::optional<int64_t> chunked_prefill_size;  // --chunked-prefill-size, tokens; none: by device
  int64_t page_size = 16;                       // --page-size, tokens
  bool true_on_policy = true;    // --no-true-on-policy: log-probs need not be training's bits
  bool overlap_schedule = true;  // --disable-overlap-schedule: a GPU waits for the host each step
};

struct RewardConfig {
  RmOptions rule;                 // --rm-type, --rm-regex
  std::string custom_rm_command;  // --custom-rm-command; replaces the rule
  int64_t rm_workers = 1;         // --rm-workers
  double rm_timeout = 60;         // --rm-timeout, seconds a sample
};

struct EvalConfig {
  std::optional<int64_t> interval;          // --eval-interval, rollouts; none: never
  std::vector<std::string> prompt_data;     // --eval-prompt-data: name path [name path …]
  int64_t n_samples_per_prompt = 1;         // --n-samples-per-eval-prompt
  std::optional<double> temperature;        // --eval-temperature
  std::optional<double> top_p;              // --eval-top-p
  std::optional<int32_t> top_k;             // --eval-top-k
  std::optional<int64_t> max_response_len;  // --eval-max-response-len
  bool skip_before_train = false;           // --skip-eval-before-train
};

struct OptimizerConfig {
  double lr = 1e-6;                                      // --lr
  double min_lr = 0;                                     // --min-lr
  LrDecayStyle lr_decay_style = LrDecayStyle::constant;  // --lr-decay-style
  int64_t lr_warmup_iters = 0;                           // --lr-warmup-iters, optimizer steps
  std::optional<int64_t> lr_decay_iters;  // --lr-decay-iters, optimizer steps; none: the whole run
  double weight_decay = 0.01;             // --weight-decay
  double adam_beta1 = 0.9;                // --adam-beta1
  double adam_beta2 = 0.999;              // --adam-beta2
  double adam_eps = 1e-8;                 // --adam-eps
  double clip_grad = 1.0;                 // --clip-grad
};

/// Whether advantages compare a prompt's samples, and how.
enum class AdvantageEstimator { grpo };

struct AlgorithmConfig {
  AdvantageEstimator advantage_estimator = AdvantageEstimator::grpo;  // --advantage-estimator
  bool grpo_std_normalization = true;  // off: --disable-grpo-std-normalization
  bool rewards_normalization = true;   // off: --disable-rewards-normalization
  LossOptions loss;  // --loss-type, --eps-clip, --kl-loss-coef, …; temperature: the rollout's
  bool use_rollout_logprobs =
      false;  // --use-rollout-logprobs: the ratio is taken against the rollout's
  bool skip_actor_forward_only =
      false;             // --skip-actor-forward-only: with the above, no log-prob pass
  std::string ref_load;  // --ref-load DIR; empty: the first weights
  bool needs_reference() const { return loss.policy.use_kl_loss; }
  RewardNorm reward_norm() const {
    if (!rewards_normalization) return RewardNorm::none;
    return grpo_std_normalization ? RewardNorm::mean_std : RewardNorm::mean;
  }
};

struct ColocateConfig {
  bool colocate = false;   // --colocate: turns both offloads on unless they are given
  HandoffOptions handoff;  // --offload-train, --offload-rollout, --colocate-memory-peak-device, …
  bool use_critic = false;  // --use-critic: refused
  int64_t lora_rank = 0;    // --lora-rank: refused unless 0
};

struct CheckpointConfig {
  std::string save;                      // --save DIR
  std::optional<int64_t> save_interval;  // --save-interval, rollouts
  std::string load;                      // --load DIR
  int64_t save_total_limit = 0;          // --save-total-limit: older ones go, last; 0: all stay
};

struct TrainConfig {
  ModelOptions model;
  DeviceConfig device;
  DataOptions data;                    // --prompt-data, --input-key, --label-key, --rollout-shuffle
  BatchSizes batch;                    // resolved
  std::optional<int64_t> num_rollout;  // --num-rollout
  std::optional<int64_t> num_epoch;    // --num-epoch; one of the two
  RolloutConfig rollout;
  EngineConfig engine;
  RewardConfig reward;
  EvalConfig eval;
  OptimizerConfig optimizer;
  AlgorithmConfig algorithm;
  ColocateConfig colocate;
  CheckpointConfig checkpoint;
  std::optional<int64_t>
      max_tokens_per_gpu;  // --max-tokens-per-gpu; none: chosen, printed, and written down
  std::optional<int64_t> recompute_num_layers;  // --recompute-num-layers, blocks; none: chosen
  int64_t log_probs_chunk_size = -1;  // --log-probs-chunk-size, rows of logits; -1: chosen
  std::string run_dir;                // --run-dir
  std::optional<int64_t> debug_exit_after_rollout;  // --debug-exit-after-rollout

  /// Whether anything is drawn and scored: supervised learning does for evaluations alone.
  bool generates() const { return algorithm.loss.type != LossType::sft_loss || eval.interval; }
};

}  // namespace miles
