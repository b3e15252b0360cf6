#include "rl/train_plan.h"

#include <algorithm>

#include "base/error.h"
#include "rl/device_setup.h"
#include "rl/sampling.h"
#include "rl/train_levers.h"

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
  const int64_t longest = max_length_drawn(config, input.model);
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

/// What that run would lack.
std::optional<Shortage> lack_of(const TrainConfig& config, const TrainPlanInput& input) {
  Planner planner(config, input);
  std::optional<Shortage> lack = planner.lack();
  if (!lack || lack->place == Place::device) return lack;
  planner.fill();
  return planner.lack();
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
    fail(ErrorCode::budget, "{}. {}", does_not_fit(*lack),
         what_fits(config, train_remedies(config, input, planner.result()),
                   [&](const TrainConfig& other) { return lack_of(other, input); }));
  return planner.result();
}

}  // namespace miles
