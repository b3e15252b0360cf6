#include "rl/fingerprint.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/shell.h"

namespace miles {
namespace {

using Json = nlohmann::ordered_json;

/// 0.2F as 0.2 and not as the double next to it.
Json number(float value) {
  return std::stod(fmt::format("{}", value));
}

template <class T>
Json number(const std::optional<T>& value) {
  return value ? number(*value) : Json("none");
}

const char* name_of(LrDecayStyle style) {
  switch (style) {
    case LrDecayStyle::constant:
      return "constant";
    case LrDecayStyle::linear:
      return "linear";
    case LrDecayStyle::cosine:
      return "cosine";
  }
  return "";
}

const char* name_of(KlLossType type) {
  switch (type) {
    case KlLossType::k1:
      return "k1";
    case KlLossType::k2:
      return "k2";
    case KlLossType::k3:
      return "k3";
    case KlLossType::low_var_kl:
      return "low_var_kl";
  }
  return "";
}

void add_model(Json& entries, const ModelConfig& model) {
  entries["model_type"] = model.model_type;
  entries["vocab_size"] = model.vocab_size;
  entries["hidden_size"] = model.hidden_size;
  entries["intermediate_size"] = model.intermediate_size;
  entries["num_hidden_layers"] = model.num_hidden_layers;
  entries["num_attention_heads"] = model.num_attention_heads;
  entries["num_key_value_heads"] = model.num_key_value_heads;
  entries["head_dim"] = model.head_dim;
  entries["rms_norm_eps"] = model.rms_norm_eps;
  entries["rope_theta"] = model.rope_theta;
  entries["rope_scaling_factor"] = model.rope_scaling ? model.rope_scaling->factor : 1.0;
  entries["qk_norm"] = model.qk_norm;
  entries["tie_word_embeddings"] = model.tie_word_embeddings;
  entries["--dtype"] = std::string(name_of(model.dtype));
}

void add_data(Json& entries, const TrainConfig& config) {
  entries["--prompt-data"] = config.data.path;
  entries["--input-key"] = config.data.input_key;
  entries["--label-key"] = config.data.label_key;
  entries["--rollout-seed"] = config.rollout.seed;
  entries["--rollout-batch-size"] = config.batch.rollout_batch_size;
  entries["--n-samples-per-prompt"] = config.batch.n_samples_per_prompt;
  entries["--global-batch-size"] = config.batch.global_batch_size;
  entries["--num-steps-per-rollout"] = config.batch.num_steps_per_rollout;
}

/// How responses are drawn and scored.
void add_rollout(Json& entries, const TrainConfig& config) {
  const RolloutConfig& rollout = config.rollout;
  entries["--rollout-temperature"] = rollout.temperature;
  entries["--rollout-top-p"] = rollout.top_p;
  entries["--rollout-top-k"] = rollout.top_k;
  entries["--rollout-min-p"] = rollout.min_p;
  entries["--rollout-stop"] = rollout.stop;
  entries["--rollout-stop-token-ids"] = rollout.stop_token_ids;
  entries["--rollout-ignore-eos"] = rollout.ignore_eos;
  entries["--rollout-skip-special-tokens"] = rollout.skip_special_tokens;
  // Its products may be split along k, and then draw other tokens.
  entries["--no-true-on-policy"] = !config.engine.true_on_policy;
  // The command itself may move, or be mended.
  const bool custom = !config.reward.custom_rm_command.empty();
  entries["--custom-rm-command"] = custom ? "given" : "not given";
  if (custom) return;
  entries["--rm-type"] = std::string(name_of(config.reward.rule.type));
  entries["--rm-regex"] = config.reward.rule.pattern;
}

void add_policy_loss(Json& entries, const TrainConfig& config) {
  const AlgorithmConfig& algorithm = config.algorithm;
  const PolicyLossOptions& policy = algorithm.loss.policy;
  entries["--disable-grpo-std-normalization"] = !algorithm.grpo_std_normalization;
  entries["--disable-rewards-normalization"] = !algorithm.rewards_normalization;
  entries["--eps-clip"] = number(policy.eps_clip);
  entries["--eps-clip-high"] = number(policy.eps_clip_high.value_or(policy.eps_clip));
  entries["--eps-clip-c"] = number(policy.eps_clip_c);
  entries["--entropy-coef"] = number(policy.entropy_coef);
  // On policy the two have the same bits.
  if (!config.engine.true_on_policy)
    entries["--use-rollout-logprobs"] = algorithm.use_rollout_logprobs;
  entries["--use-kl-loss"] = policy.use_kl_loss;
  if (!policy.use_kl_loss) return;
  entries["--kl-loss-coef"] = number(policy.kl_loss_coef);
  entries["--kl-loss-type"] = name_of(policy.kl_loss_type);
}

void add_optimizer(Json& entries, const OptimizerConfig& optimizer, const LrSchedule& schedule) {
  entries["--lr"] = schedule.lr;
  entries["--lr-warmup-iters"] = schedule.warmup_steps;
  entries["--lr-decay-style"] = name_of(schedule.style);
  if (schedule.style != LrDecayStyle::constant) {
    entries["--min-lr"] = schedule.min_lr;
    entries["--lr-decay-iters"] = schedule.decay_steps;
  }
  entries["--weight-decay"] = optimizer.weight_decay;
  entries["--adam-beta1"] = optimizer.adam_beta1;
  entries["--adam-beta2"] = optimizer.adam_beta2;
  entries["--adam-eps"] = optimizer.adam_eps;
  entries["--clip-grad"] = optimizer.clip_grad;
}

}  // namespace

nlohmann::ordered_json fingerprint(const TrainConfig& config, const ModelConfig& model,
                                   const LrSchedule& schedule) {
  const LossOptions& loss = config.algorithm.loss;
  const bool supervised = loss.type == LossType::sft_loss;
  Json entries = Json::object();
  add_model(entries, model);
  entries["--loss-type"] = supervised ? "sft_loss" : "policy_loss";
  entries["--calculate-per-token-loss"] = loss.calculate_per_token_loss;
  add_data(entries, config);
  if (!supervised) {
    add_rollout(entries, config);
    add_policy_loss(entries, config);
  }
  add_optimizer(entries, config.optimizer, schedule);
  return entries;
}

nlohmann::ordered_json rounding_fingerprint(const TrainConfig& config, const std::string& device) {
  Json entries = Json::object();
  if (config.max_tokens_per_gpu) entries["--max-tokens-per-gpu"] = *config.max_tokens_per_gpu;
  entries["--log-probs-chunk-size"] = config.log_probs_chunk_size;
  entries["device"] = device;
  return entries;
}

std::vector<std::string> rounding_differences(const nlohmann::json& saved,
                                              const nlohmann::ordered_json& ours) {
  std::vector<std::string> lines;
  for (const auto& [key, entry] : ours.items()) {
    const nlohmann::json value = entry;
    const auto other = saved.find(key);
    if (other != saved.end() && *other != value)
      lines.push_back(fmt::format(
          "{} was {} when it was saved and is {} now: the run goes on, but rounds its sums "
          "differently than it would have",
          key, other->dump(), value.dump()));
  }
  return lines;
}

nlohmann::ordered_json reference_fingerprint(const Tensor& weights) {
  // A multiplication carries a difference up, the rotation brings it down again: none gets lost.
  uint64_t digest = 0x9e3779b97f4a7c15ULL;
  const auto* bytes = static_cast<const std::byte*>(weights.data());
  const int64_t whole = weights.bytes() / 8 * 8;
  const auto mix = [&](uint64_t word) {
    digest = (std::rotl(digest, 29) ^ word) * 0xd6e8feb86659fd93ULL;
  };
  for (int64_t i = 0; i < whole; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, 8);
    mix(word);
  }
  for (int64_t i = whole; i < weights.bytes(); ++i) mix(static_cast<uint64_t>(bytes[i]));
  return {{"reference weights", fmt::format("{:016x}", digest)}};
}

void check_fingerprint(const nlohmann::json& saved, const nlohmann::ordered_json& ours,
                       const std::filesystem::path& checkpoint) {
  for (const auto& [key, entry] : ours.items()) {
    const nlohmann::json value = entry;
    const auto other = saved.find(key);
    if (other != saved.end() && *other == value) continue;
    fail(ErrorCode::data,
         "--load {}: {} was {} when it was saved and is {} now{}; give it as it was to go on, or "
         "leave out --load and begin a new run from those weights: --hf-checkpoint {}",
         checkpoint.string(), key, other == saved.end() ? "not known" : other->dump(), value.dump(),
         key == "--lr-decay-iters" ? " (unless given, it follows from --num-rollout)" : "",
         shell_word((checkpoint / "hf").string()));
  }
}

}  // namespace miles
