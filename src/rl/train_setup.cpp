#include "rl/train_setup.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "rl/rollout_executor.h"

namespace miles {
namespace {

/// Device memory that is left to what driver and libraries take only when it is used: cuBLASLt's
/// kernels and ours, and graphs.
int64_t driver_growth(const Device& device) {
  return device.kind() == DeviceKind::cuda ? int64_t{512} << 20 : 0;
}

/// Refuses a share of the machine's memory that is more than all of it.
void check_share(const char* flag, const std::optional<int64_t>& bytes) {
  if (const int64_t all = host_capacity_bytes(); bytes && *bytes > all)
    fail(ErrorCode::flags, "{} {}: with --device cpu it is the machine's, which has {} ({} bytes)",
         flag, format_bytes(*bytes), format_bytes(all), all);
}

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

ActorPlacement placement_of(const HandoffOptions& handoff) {
  if (!handoff.offload_train) return ActorPlacement::resident;
  return handoff.peak_device == PeakDevice::gpu ? ActorPlacement::streamed : ActorPlacement::loaded;
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

ActorOptions actor_options(TrainConfig& config, const ModelConfig& model, int64_t num_rollout) {
  ActorOptions options;
  options.placement = placement_of(config.colocate.handoff);
  options.max_sequence_length = max_sample_length(config, model);
  options.max_sequences_per_step = config.batch.global_batch_size;
  options.max_tokens_per_step = options.max_sequence_length * config.batch.global_batch_size;
  if (!config.max_tokens_per_gpu) {
    config.max_tokens_per_gpu =
        std::max(options.max_sequence_length, std::min<int64_t>(options.max_tokens_per_step, 8192));
    log::info("--max-tokens-per-gpu {} was chosen", *config.max_tokens_per_gpu);
  }
  if (*config.max_tokens_per_gpu < options.max_sequence_length)
    fail(ErrorCode::flags,
         "--max-tokens-per-gpu {} is less than the longest sample, {} tokens; raise it, or lower "
         "--rollout-max-response-len",
         *config.max_tokens_per_gpu, options.max_sequence_length);
  options.max_tokens_per_gpu = std::min(*config.max_tokens_per_gpu, options.max_tokens_per_step);
  if (config.recompute_num_layers) {
    if (*config.recompute_num_layers > model.num_hidden_layers)
      fail(ErrorCode::flags,
           "--recompute-num-layers {}: the model has {} blocks; pass 0 (keep all activations) to "
           "{} (keep none), or leave it out",
           *config.recompute_num_layers, model.num_hidden_layers, model.num_hidden_layers);
    options.recompute_num_layers = *config.recompute_num_layers;
  }
  options.log_probs_chunk_size = std::max<int64_t>(0, config.log_probs_chunk_size);
  options.with_reference = config.algorithm.needs_reference();
  const OptimizerConfig& optimizer = config.optimizer;
  options.optimizer = {.schedule = {.lr = optimizer.lr,
                                    .min_lr = optimizer.min_lr,
                                    .style = optimizer.lr_decay_style,
                                    .warmup_steps = optimizer.lr_warmup_iters,
                                    .decay_steps = optimizer.lr_decay_iters.value_or(
                                        num_rollout * config.batch.num_steps_per_rollout)},
                       .beta1 = static_cast<float>(optimizer.adam_beta1),
                       .beta2 = static_cast<float>(optimizer.adam_beta2),
                       .eps = static_cast<float>(optimizer.adam_eps),
                       .weight_decay = static_cast<float>(optimizer.weight_decay),
                       .clip_grad = static_cast<float>(optimizer.clip_grad)};
  return options;
}

EngineOptions engine_options(const TrainConfig& config, const ModelConfig& model,
                             std::span<const EvalSet> eval_sets, DeviceKind device) {
  int64_t longest = max_sample_length(config, model);
  if (config.eval.interval) longest = std::max(longest, max_eval_length(config, model));
  int64_t requests = config.batch.rollout_batch_size * config.batch.n_samples_per_prompt;
  for (const EvalSet& set : eval_sets)
    requests =
        std::max(requests, std::ssize(set.source.prompts()) * config.eval.n_samples_per_prompt);
  EngineOptions options = resolve_engine(config.engine, device, longest, requests);
  options.seed = config.rollout.seed;
  return options;
}

}  // namespace

EngineOptions resolve_engine(const EngineConfig& config, DeviceKind device, int64_t max_context_len,
                             int64_t requests) {
  // A GPU's time for a step is that of reading weights and cache, whatever few rows come along.
  const bool cuda = device == DeviceKind::cuda;
  EngineOptions options;
  options.page_size = config.page_size;
  options.max_running_requests =
      config.max_running_requests.value_or(std::min<int64_t>(cuda ? 256 : 64, requests));
  options.chunked_prefill_size = config.chunked_prefill_size.value_or(cuda ? 4096 : 512);
  options.true_on_policy = config.true_on_policy;
  // The CPU's kernels run on the host's own threads: there is nothing to overlap.
  options.overlap_schedule = config.overlap_schedule && cuda;
  options.max_context_len = max_context_len;
  const int64_t pages = (max_context_len + options.page_size - 1) / options.page_size;
  options.max_total_tokens =
      config.max_total_tokens.value_or(options.max_running_requests * pages * options.page_size);
  check_cache_holds(options.max_total_tokens, max_context_len);
  return options;
}

void check_cache_holds(int64_t max_total_tokens, int64_t longest) {
  if (max_total_tokens < longest)
    fail(
        ErrorCode::flags,
        "--max-total-tokens {}: the KV cache must hold the longest sample, {} tokens of prompt and "
        "response; raise it to that, leave it out, or shorten prompts or responses",
        max_total_tokens, longest);
}

std::unique_ptr<Device> make_device(DeviceChoice choice) {
  if (choice == DeviceChoice::cuda) return make_cuda_device();
  if (choice == DeviceChoice::automatic && cuda_device_count() > 0) try {
      return make_cuda_device();
    } catch (const Error& error) {
      log::warn("--device auto takes the CPU: {}", error.what());
    }
  return make_cpu_device();
}

MemoryBudget resolve_budget(const DeviceConfig& config, const Device& device) {
  // What is sold as a GPU of 24 GiB has a little less, and its budget may still be called 24GiB:
  // check_device_has() looks at what is there.
  if (device.kind() == DeviceKind::cpu) {
    check_share("--gpu-memory-budget", config.gpu_memory_budget);
    check_share("--host-memory-budget", config.host_memory_budget);
  }
  const int64_t free = device.capacity_bytes() - device.foreign_bytes() - driver_growth(device);
  return {.device_bytes = config.gpu_memory_budget.value_or(std::max<int64_t>(0, free)),
          .host_bytes = config.host_memory_budget.value_or(host_capacity_bytes())};
}

namespace {

/// What is there for the device's side of a plan, bytes: with the CPU the host's side comes first.
int64_t there_is(const MemoryPlan& plan, const Device& device) {
  const int64_t host = device.kind() == DeviceKind::cpu ? plan.host_peak : 0;
  return device.capacity_bytes() - device.foreign_bytes() - driver_growth(device) - host;
}

}  // namespace

int64_t room_to_fill(const TrainConfig& config, const MemoryPlan& least, const MemoryBudget& budget,
                     const Device& device) {
  const bool fills = device.kind() == DeviceKind::cuda &&
                     placement_of(config.colocate.handoff) != ActorPlacement::streamed;
  int64_t room = 0;
  if (config.device.gpu_memory_budget)
    room = budget.device_bytes;
  else if (fills)
    room = budget.device_bytes / 10 * 9;
  return std::max(least.device_peak, std::min(room, there_is(least, device)));
}

void check_device_has(const MemoryPlan& plan, const Device& device) {
  const int64_t room = there_is(plan, device);
  if (plan.device_peak <= room) return;
  const std::string need = format_bytes(plan.device_peak),
                    capacity = format_bytes(device.capacity_bytes());
  if (device.kind() == DeviceKind::cpu)
    fail(ErrorCode::budget,
         "does not fit: with --device cpu both memories are the machine's: {} for the device and "
         "{} for the host, of {} that there are; {}",
         need, format_bytes(plan.host_peak), capacity, remedies(plan));
  fail(ErrorCode::budget,
       "does not fit: the run needs {} of device memory, but of the {} of {} the driver, libraries "
       "and other processes hold {}, and {} is left for driver and libraries; end other processes, "
       "or {}",
       need, capacity, device.name(), format_bytes(device.foreign_bytes()),
       format_bytes(driver_growth(device)), remedies(Place::device, plan, room));
}

void keep_fitting_prompts(DataSource& data, const Tokenizer& tokenizer, int64_t max_prompt_len) {
  const int64_t skipped = data.keep_if([&](const Prompt& prompt) {
    const auto ids = encode_prompt(tokenizer, prompt.text);
    return !ids.empty() && static_cast<int64_t>(ids.size()) <= max_prompt_len;
  });
  if (data.size() == 0)
    fail(ErrorCode::data,
         "no prompt is left: all {} are empty or longer than --rollout-max-prompt-len {} tokens",
         skipped, max_prompt_len);
  if (skipped > 0)
    log::warn(
        "{} of {} prompts are empty or longer than --rollout-max-prompt-len {} tokens: skipped",
        skipped, skipped + data.size(), max_prompt_len);
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

/// For the line of the plan: what a trainer that streams need not copy in each step.
std::string what_stays(const PlanInput& input) {
  const auto part = [](int64_t stay, int64_t all, const char* what) {
    return stay == 0 ? ""
                     : fmt::format("; {} of {} {} on the device while training",
                                   std::min(stay, all), all, what);
  };
  return part(input.actor.resident_layers, input.layout.layers(),
              "blocks' weights and gradients stay") +
         part(input.actor.resident_states, std::ssize(make_chunks(input.layout)),
              "chunks of optimizer state stay");
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
  keep_fitting_prompts(data, tokenizer, max_prompt);
  const bool supervised = config.algorithm.loss.type == LossType::sft_loss;
  keep_labelled_prompts(data, config.data.path, config.reward,
                        supervised ? LabelUse::learned : LabelUse::scored);
  std::vector<EvalSet> eval_sets = load_eval_sets(config);
  for (EvalSet& set : eval_sets) {
    keep_fitting_prompts(set.source, tokenizer, max_prompt);
    keep_labelled_prompts(set.source, set.name, config.reward, LabelUse::scored);
  }

  const int64_t num_rollout = resolve_num_rollout(config, data);
  const EngineOptions engine = engine_options(config, model.config(), eval_sets, device->kind());
  const MemoryBudget budget = resolve_budget(config.device, *device);
  PlanInput input{.device = *device,
                  .config = model.config(),
                  .layout = layout,
                  .actor = actor_options(config, model.config(), num_rollout),
                  .engine = engine,
                  .handoff = config.colocate.handoff,
                  .saves = !config.checkpoint.save.empty(),
                  .num_steps_per_rollout = config.batch.num_steps_per_rollout};
  // First with as little on the device as there can be. What stays there needs less of the host.
  MemoryPlan plan = plan_memory(input);
  check_device_has(plan, *device);  // first: no budget helps against that
  check_fits(plan, {.device_bytes = budget.device_bytes});
  const int64_t room = room_to_fill(config, plan, budget, *device);
  keep_most_resident(input, room);
  plan = config.recompute_num_layers ? plan_memory(input) : plan_fewest_recomputed(input, room);
  check_fits(plan, budget);
  input.actor.recompute_num_layers = plan.recomputed_blocks;
  log::info("device: {}", device->name());
  log::info("memory plan: device {} of {}, host {} of {}; {} of {} blocks are recomputed{}",
            format_bytes(plan.device_peak), format_bytes(budget.device_bytes),
            format_bytes(plan.host_peak), format_bytes(budget.host_bytes), plan.recomputed_blocks,
            plan.blocks, what_stays(input));
  return {.config = std::move(config),
          .model = std::move(model),
          .reference = std::move(reference),
          .layout = std::move(layout),
          .tokenizer = std::move(tokenizer),
          .data = std::move(data),
          .eval_sets = std::move(eval_sets),
          .num_rollout = num_rollout,
          .actor = input.actor,
          .engine = engine,
          .budget = budget,
          .device = std::move(device),
          .plan = std::move(plan)};
}

}  // namespace miles
