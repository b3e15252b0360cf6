#include "rl/train_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "rl/device_setup.h"
#include "rl/sampling.h"

namespace miles {
namespace {

ActorPlacement placement_of(const HandoffOptions& handoff) {
  if (!handoff.offload_train) return ActorPlacement::resident;
  return handoff.peak_device == PeakDevice::gpu ? ActorPlacement::streamed : ActorPlacement::loaded;
}

int64_t resolve_max_tokens(const TrainConfig& config, const ModelConfig& model) {
  const int64_t longest = max_sample_length(config, model);
  const int64_t most = longest * config.batch.global_batch_size;
  const int64_t tokens =
      config.max_tokens_per_gpu.value_or(std::max(longest, std::min<int64_t>(most, 8192)));
  if (tokens < longest)
    fail(ErrorCode::flags,
         "--max-tokens-per-gpu {} is less than the longest sample, {} tokens; raise it, or lower "
         "--rollout-max-response-len",
         tokens, longest);
  return tokens;
}

ActorOptions actor_options(const TrainConfig& config, const TrainPlanInput& input) {
  ActorOptions options;
  options.placement = placement_of(config.colocate.handoff);
  options.max_sequence_length = max_sample_length(config, input.model);
  options.max_sequences_per_step = config.batch.global_batch_size;
  options.max_tokens_per_step = options.max_sequence_length * config.batch.global_batch_size;
  options.max_tokens_per_gpu =
      std::min(resolve_max_tokens(config, input.model), options.max_tokens_per_step);
  if (config.recompute_num_layers) {
    const int64_t blocks = input.model.num_hidden_layers;
    if (*config.recompute_num_layers > blocks)
      fail(ErrorCode::flags,
           "--recompute-num-layers {}: the model has {} blocks; pass 0 (keep all activations) to "
           "{} (keep none), or leave it out",
           *config.recompute_num_layers, blocks, blocks);
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
                                        input.num_rollout * config.batch.num_steps_per_rollout)},
                       .beta1 = static_cast<float>(optimizer.adam_beta1),
                       .beta2 = static_cast<float>(optimizer.adam_beta2),
                       .eps = static_cast<float>(optimizer.adam_eps),
                       .weight_decay = static_cast<float>(optimizer.weight_decay),
                       .clip_grad = static_cast<float>(optimizer.clip_grad)};
  return options;
}

EngineOptions engine_options(const TrainConfig& config, const TrainPlanInput& input) {
  int64_t longest = max_sample_length(config, input.model);
  if (config.eval.interval) longest = std::max(longest, max_eval_length(config, input.model));
  const int64_t requests = std::max(config.batch.samples_per_rollout(),
                                    input.most_eval_prompts * config.eval.n_samples_per_prompt);
  EngineOptions options = resolve_engine(config.engine, input.device.kind(), longest, requests);
  options.seed = config.rollout.seed;
  return options;
}

/// A plan under way: with as little on the device as there can be, and then with what saves time.
class Planner {
 public:
  Planner(const TrainConfig& config, const TrainPlanInput& input)
      : config_(config),
        device_(input.device),
        budget_(resolve_budget(config.device, input.device)),
        max_tokens_per_gpu_(resolve_max_tokens(config, input.model)),
        input_{.device = input.device,
               .config = input.model,
               .layout = input.layout,
               .actor = actor_options(config, input),
               .engine = engine_options(config, input),
               .handoff = config.colocate.handoff,
               .generates = config.generates(),
               .saves = !config.checkpoint.save.empty(),
               .num_steps_per_rollout = config.batch.num_steps_per_rollout},
        plan_(plan_memory(input_)) {}

  std::optional<Shortage> lack() const { return shortage(plan_, budget_, device_); }

  /// Gives state and activations that save time the room that is left to them. What stays on the
  /// device needs less of the host.
  void fill() {
    const int64_t room = room_to_fill(config_, plan_, budget_, device_);
    keep_most_resident(input_, room);
    plan_ =
        config_.recompute_num_layers ? plan_memory(input_) : plan_fewest_recomputed(input_, room);
    input_.actor.recompute_num_layers = plan_.recomputed_blocks;
  }

  const MemoryPlan& plan() const { return plan_; }
  TrainPlan result() const {
    return {.max_tokens_per_gpu = max_tokens_per_gpu_,
            .actor = input_.actor,
            .engine = input_.engine,
            .budget = budget_,
            .memory = plan_};
  }

 private:
  const TrainConfig& config_;
  const Device& device_;
  MemoryBudget budget_;
  int64_t max_tokens_per_gpu_;
  PlanInput input_;
  MemoryPlan plan_;
};

/// The flags that make a trainer stream its state and leave the device to the engine.
std::string streaming_flags(const ColocateConfig& now) {
  std::vector<const char*> flags;
  if (!now.colocate) flags.push_back("--colocate");
  // Which --colocate turns on, unless the contrary was given.
  if (now.colocate && !now.handoff.offload_train) flags.push_back("--offload-train");
  if (now.colocate && !now.handoff.offload_rollout) flags.push_back("--offload-rollout");
  if (now.handoff.peak_device != PeakDevice::gpu)
    flags.push_back("--colocate-memory-peak-device gpu");
  return fmt::format("{}", fmt::join(flags, " "));
}

void stream(TrainConfig& config, int64_t) {
  config.colocate.colocate = true;
  config.colocate.handoff.offload_train = config.colocate.handoff.offload_rollout = true;
  config.colocate.handoff.peak_device = PeakDevice::gpu;
}

/// Numbers of samples a step that divide a rollout's, from now down.
std::vector<int64_t> smaller_steps(const BatchSizes& now) {
  std::vector<int64_t> sizes;
  for (int64_t size = now.global_batch_size; size > 0; --size)
    if (now.samples_per_rollout() % size == 0) sizes.push_back(size);
  return sizes;
}

void set_step(TrainConfig& config, int64_t samples) {
  config.batch.num_steps_per_rollout = config.batch.samples_per_rollout() / samples;
  config.batch.global_batch_size = samples;
}

/// What lowers the trainer's need, from what costs least on.
std::vector<Lever> train_levers(const TrainConfig& config, const TrainPlan& now) {
  constexpr int64_t kLeastRows = 16, kLeastLength = 16;  // below which nobody wants to go
  std::vector<Lever> levers;
  if (config.recompute_num_layers) {
    std::vector<int64_t> values(
        static_cast<size_t>(now.memory.blocks - *config.recompute_num_layers + 1));
    std::iota(values.begin(), values.end(), *config.recompute_num_layers);
    levers.push_back(
        {.flag = "--recompute-num-layers",
         .values = std::move(values),
         .set = [](TrainConfig& to, int64_t blocks) { to.recompute_num_layers = blocks; }});
  }
  levers.push_back({.flag = "--log-probs-chunk-size",
                    .values = values_down_to(kLeastRows, now.memory.log_probs_chunk_size),
                    .set = [](TrainConfig& to, int64_t rows) { to.log_probs_chunk_size = rows; }});
  levers.push_back(
      {.flag = "--max-tokens-per-gpu",
       .values = values_down_to(now.actor.max_sequence_length, now.max_tokens_per_gpu),
       .set = [](TrainConfig& to, int64_t tokens) { to.max_tokens_per_gpu = tokens; }});
  if (const std::string flags = streaming_flags(config.colocate); !flags.empty())
    levers.push_back({.flag = flags, .values = {0, 1}, .set = stream, .unit = Lever::Unit::given});
  levers.push_back({.flag = "--global-batch-size",
                    .values = smaller_steps(config.batch),
                    .set = set_step,
                    .cost = Lever::Cost::task,
                    // Both, for either may have been given.
                    .says = [samples = config.batch.samples_per_rollout()](int64_t size) {
                      return fmt::format("--num-steps-per-rollout {} --global-batch-size {}",
                                         samples / size, size);
                    }});
  levers.push_back(
      {.flag = "--rollout-max-response-len",
       .values = values_down_to(kLeastLength, config.rollout.max_response_len),
       .set = [](TrainConfig& to, int64_t tokens) { to.rollout.max_response_len = tokens; },
       .cost = Lever::Cost::task});
  levers.push_back(
      {.flag = "--rollout-max-prompt-len",
       .values = values_down_to(kLeastLength, config.rollout.max_prompt_len),
       .set = [](TrainConfig& to, int64_t tokens) { to.rollout.max_prompt_len = tokens; },
       .cost = Lever::Cost::task});
  return levers;
}

/// What that run would lack.
std::optional<std::string> lack_of(const TrainConfig& config, const TrainPlanInput& input) {
  try {
    Planner planner(config, input);
    std::optional<Shortage> lack = planner.lack();
    if (lack && lack->place == Place::host) {
      planner.fill();
      lack = planner.lack();
    }
    return lack ? std::optional(lack->text) : std::nullopt;
  } catch (const Error& error) {  // sizes that cannot be
    return error.what();
  }
}

std::string advice(const TrainConfig& config, const TrainPlanInput& input, const TrainPlan& now) {
  std::vector<Lever> levers = budget_levers(config.device, now.memory, input.device);
  const auto add = [&](const std::vector<Lever>& more) {
    levers.insert(levers.end(), more.begin(), more.end());
  };
  add(train_levers(config, now));
  if (config.generates()) add(engine_levers(now.engine));
  return what_fits(config, levers, [&](const TrainConfig& other) { return lack_of(other, input); });
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
  return std::max(least.device_peak, std::min(room, device_room(device, least.host_peak)));
}

TrainPlan plan_training(const TrainConfig& config, const TrainPlanInput& input) {
  Planner planner(config, input);
  std::optional<Shortage> lack = planner.lack();
  if (!lack || lack->place == Place::host) {
    planner.fill();
    lack = planner.lack();
  }
  if (lack)
    fail(ErrorCode::budget, "does not fit: {}. {}", lack->text,
         advice(config, input, planner.result()));
  return planner.result();
}

}  // namespace miles
