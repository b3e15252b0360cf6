#include "rl/train_setup.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "rl/device_setup.h"
#include "rl/sampling.h"

namespace miles {
namespace {

/// Refuses what Miles knows and this program does not do yet, and what cannot go together.
void check_algorithm(const TrainConfig& config) {
  const bool gpu = config.colocate.handoff.peak_device == PeakDevice::gpu;
  if (config.colocate.use_critic)
    fail(ErrorCode::flags, "{}",
         gpu ? "--colocate-memory-peak-device gpu does not take a critic; leave out --use-critic"
             : "--use-critic: not implemented: advantages come from groups (grpo); leave it out");
  if (config.colocate.lora_rank != 0)
    fail(ErrorCode::flags,
         "--lora-rank {}: not implemented: full-parameter training only; leave it out",
         config.colocate.lora_rank);
  if (config.log_probs_chunk_size == 0)
    fail(ErrorCode::flags,
         "--log-probs-chunk-size 0: no row of logits is no training; pass how many rows are held "
         "at a time, or -1, which chooses");
  check_handoff_options(config.colocate.handoff);
  check_policy_loss_options(config.algorithm.loss.policy);
  check_sampling_params(rollout_sampling(config), "--rollout-");
  // Where it differs, an --eval-… was given.
  if (config.eval.interval) check_sampling_params(eval_sampling(config), "--eval-");
  if (config.algorithm.skip_actor_forward_only && !config.algorithm.use_rollout_logprobs)
    fail(ErrorCode::flags,
         "--skip-actor-forward-only needs --use-rollout-logprobs: without either there are no old "
         "log-probs");
  if (!config.algorithm.ref_load.empty() && !config.algorithm.needs_reference())
    fail(ErrorCode::flags, "--ref-load without --use-kl-loss: nothing would use the reference");
  if (config.algorithm.loss.type == LossType::sft_loss && config.algorithm.loss.policy.use_kl_loss)
    fail(ErrorCode::flags,
         "--use-kl-loss with --loss-type sft_loss: supervised learning has no KL loss; leave it "
         "out");
  if (config.checkpoint.save_interval && config.checkpoint.save.empty())
    fail(ErrorCode::flags, "--save-interval without --save DIR: there is nowhere to save to");
  if (config.eval.interval && config.eval.prompt_data.empty())
    fail(ErrorCode::flags,
         "--eval-interval without --eval-prompt-data NAME PATH: there is nothing to evaluate on");
  if (config.num_rollout.has_value() == config.num_epoch.has_value())
    fail(ErrorCode::flags, "pass one of --num-rollout and --num-epoch");
  // A draw at temperature 0 has no spread to learn from, and its log-probs are not the policy's.
  if (config.algorithm.loss.type == LossType::policy_loss && config.rollout.temperature < 1e-6)
    fail(ErrorCode::flags,
         "--rollout-temperature {}: a policy is learned from draws; pass a temperature of at least "
         "1e-6",
         config.rollout.temperature);
}

int64_t resolve_num_rollout(const TrainConfig& config, const DataSource& data) {
  if (config.num_rollout) return *config.num_rollout;
  const int64_t per_epoch = data.size() / config.batch.rollout_batch_size;
  if (per_epoch == 0)
    fail(ErrorCode::flags,
         "--num-epoch: the data has {} prompts, fewer than one rollout of --rollout-batch-size {}; "
         "pass --num-rollout",
         data.size(), config.batch.rollout_batch_size);
  return per_epoch * *config.num_epoch;
}

/// --ref-load: other weights of the same model.
std::optional<ModelSource> resolve_reference(const TrainConfig& config, const ModelSource& model) {
  if (config.algorithm.ref_load.empty()) return std::nullopt;
  ModelOptions options = config.model;
  options.model = {};
  options.init_random = false;
  options.hf_checkpoint = config.algorithm.ref_load;
  options.hf_checkpoint_flag = "--ref-load";
  // Its tokens are the policy's.
  if (const auto directory = model.tokenizer_directory()) options.tokenizer = directory->string();
  return ModelSource::resolve(options);
}

}  // namespace

int64_t keep_fitting_prompts(DataSource& data, const Tokenizer& tokenizer, int64_t max_prompt_len) {
  int64_t longest = 0;
  const int64_t skipped = data.keep_if([&](const Prompt& prompt) {
    const int64_t length = std::ssize(tokenizer.encode_prompt(prompt.text));
    const bool fits = length > 0 && length <= max_prompt_len;
    if (fits) longest = std::max(longest, length);
    return fits;
  });
  if (data.size() == 0)
    fail(ErrorCode::data,
         "no prompt is left: all {} are empty or longer than --rollout-max-prompt-len {} tokens",
         skipped, max_prompt_len);
  if (skipped > 0)
    log::warn(
        "{} of {} prompts are empty or longer than --rollout-max-prompt-len {} tokens: skipped",
        skipped, skipped + data.size(), max_prompt_len);
  return longest;
}

void keep_labelled_prompts(DataSource& data, const std::string& path, const RewardConfig& reward,
                           LabelUse use) {
  if (use == LabelUse::scored && !reward.custom_rm_command.empty()) return;
  const RuleReward rule(reward.rule);
  const int64_t skipped = data.keep_if([&](const Prompt& prompt) {
    return use == LabelUse::learned ? !prompt.label.empty() : rule.can_score(prompt.label);
  });
  const std::string needed =
      use == LabelUse::learned ? "a label to learn"
      : reward.rule.type == RmType::math
          ? "a label with a number in it, which --rm-type math compares with"
          : fmt::format("a label, which --rm-type {} compares with", name_of(reward.rule.type));
  if (data.size() == 0)
    fail(ErrorCode::data,
         "{}: none of the {} prompts has {}; name the labels' key with --label-key", path, skipped,
         needed);
  if (skipped > 0)
    log::warn("{}: {} of {} prompts lack {}: skipped", path, skipped, skipped + data.size(),
              needed);
}

namespace {

/// What a trainer that streams need not copy in each step, for the log.
std::string what_stays(const ActorOptions& actor, const ParamLayout& layout) {
  const auto part = [](int64_t stay, int64_t all, const char* what) {
    return stay == 0 ? ""
                     : fmt::format("; {} of {} {} on the device while training",
                                   std::min(stay, all), all, what);
  };
  return part(actor.resident_layers, layout.layers(), "blocks' weights and gradients stay") +
         part(actor.resident_states, std::ssize(make_chunks(layout)),
              "chunks of optimizer state stay");
}

void log_plan(const TrainConfig& config, const TrainPlan& plan, const Device& device,
              const ParamLayout& layout) {
  if (!config.max_tokens_per_gpu)
    log::info("--max-tokens-per-gpu {} was chosen", plan.max_tokens_per_gpu);
  const MemoryPlan& memory = plan.memory;
  log::info("device: {}", device.name());
  log::info(
      "memory plan: device {} of {}, host {} of {}; {} of {} blocks are recomputed; {} rows of "
      "logits at a time{}",
      format_bytes(memory.device_peak), format_bytes(plan.budget.device_bytes),
      format_bytes(memory.host_peak), format_bytes(plan.budget.host_bytes),
      memory.recomputed_blocks, memory.blocks, memory.log_probs_chunk_size,
      what_stays(plan.actor, layout));
}

}  // namespace

TrainSetup prepare_training(TrainConfig config) {
  check_algorithm(config);
  ModelSource model = ModelSource::resolve(config.model);
  std::optional<ModelSource> reference = resolve_reference(config, model);
  auto device = make_device(config.device.device);
  Tokenizer tokenizer = model.load_tokenizer();
  ParamLayout layout(model.config());
  const int64_t longest = max_sample_length(config, model.config());
  if (longest < 2)
    fail(ErrorCode::flags, "the longest sample is {} tokens; raise --rollout-max-context-len",
         longest);
  const int64_t max_prompt = std::min(config.rollout.max_prompt_len, longest - 1);

  DataSource data = DataSource::load(config.data);
  int64_t longest_prompt = keep_fitting_prompts(data, tokenizer, max_prompt);
  const bool supervised = config.algorithm.loss.type == LossType::sft_loss;
  keep_labelled_prompts(data, config.data.path, config.reward,
                        supervised ? LabelUse::learned : LabelUse::scored);
  std::vector<EvalSet> eval_sets = load_eval_sets(config);
  for (EvalSet& set : eval_sets) {
    longest_prompt =
        std::max(longest_prompt, keep_fitting_prompts(set.source, tokenizer, max_prompt));
    keep_labelled_prompts(set.source, set.name, config.reward, LabelUse::scored);
  }

  const int64_t num_rollout = resolve_num_rollout(config, data);
  int64_t most_eval_prompts = 0;
  for (const EvalSet& set : eval_sets)
    most_eval_prompts = std::max(most_eval_prompts, set.source.size());
  TrainPlan plan = plan_training(config, {.model = model.config(),
                                          .layout = layout,
                                          .device = *device,
                                          .num_rollout = num_rollout,
                                          .most_eval_prompts = most_eval_prompts,
                                          .longest_prompt = longest_prompt});
  log_plan(config, plan, *device, layout);
  config.max_tokens_per_gpu = plan.max_tokens_per_gpu;
  return {.config = std::move(config),
          .model = std::move(model),
          .reference = std::move(reference),
          .layout = std::move(layout),
          .tokenizer = std::move(tokenizer),
          .data = std::move(data),
          .eval_sets = std::move(eval_sets),
          .num_rollout = num_rollout,
          .device = std::move(device),
          .plan = std::move(plan)};
}

}  // namespace miles
