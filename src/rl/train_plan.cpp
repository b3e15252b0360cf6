#include "rl/train_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "rl/device_setup.h"
#include "rl/levers.h"
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

void share(TrainConfig& config, bool offload, PeakDevice peak) {
  config.colocate.colocate = config.colocate.colocate || offload;
  config.colocate.handoff.offload_train = config.colocate.handoff.offload_rollout = offload;
  config.colocate.handoff.peak_device = peak;
}

/// Other ways to share the device than `now`, those that hold least first.
std::vector<Mode> other_modes(const ColocateConfig& now) {
  const HandoffOptions& handoff = now.handoff;
  const bool both = handoff.offload_train && handoff.offload_rollout;
  const bool gpu = handoff.peak_device == PeakDevice::gpu;
  // By name, and not --colocate: that leaves alone what was given, and a config.toml gives both.
  const std::string offload = std::string(handoff.offload_train ? "" : "--offload-train ") +
                              (handoff.offload_rollout ? "" : "--offload-rollout ");
  std::vector<Mode> modes;
  if (!both || !gpu)
    modes.push_back({offload + "--colocate-memory-peak-device gpu",
                     [](TrainConfig& to) { share(to, true, PeakDevice::gpu); }});
  if (!both || gpu)
    modes.push_back({offload + "--colocate-memory-peak-device cpu",
                     [](TrainConfig& to) { share(to, true, PeakDevice::cpu); }});
  if (handoff.offload_train || handoff.offload_rollout)
    modes.push_back({std::string("--no-offload-train --no-offload-rollout") +
                         (gpu ? " --colocate-memory-peak-device cpu" : ""),
                     [](TrainConfig& to) { share(to, false, PeakDevice::cpu); }});
  return modes;
}

/// Numbers of samples a step that divide a rollout's, from now down.
std::vector<int64_t> smaller_steps(const BatchSizes& now) {
  std::vector<int64_t> sizes;
  for (int64_t size = now.global_batch_size; size > 0; --size)
    if (now.samples_per_rollout() % size == 0) sizes.push_back(size);
  return sizes;
}

int64_t set_step(TrainConfig& config, int64_t samples) {
  config.batch.num_steps_per_rollout = config.batch.samples_per_rollout() / samples;
  return config.batch.global_batch_size = samples;
}

/// A Lever::set of a flag that is one member.
template <class Part, class Value>
std::function<int64_t(TrainConfig&, int64_t)> setter(Part TrainConfig::*part, Value Part::*value) {
  return [=](TrainConfig& to, int64_t given) {
    to.*part.*value = given;
    return given;
  };
}

/// What lengths follow from, and the engine's and the trainer's sizes from them.
std::vector<Lever> length_levers(const TrainConfig& config, const TrainPlanInput& input) {
  constexpr int64_t kLeast = 16;  // tokens: below that nobody wants to go
  std::vector<Lever> levers;
  if (input.longest_prompt > 0)  // less would leave prompts out
    levers.push_back({.flag = "--rollout-max-prompt-len",
                      .values = values_down_to(input.longest_prompt, config.rollout.max_prompt_len),
                      .set = setter(&TrainConfig::rollout, &RolloutConfig::max_prompt_len)});
  levers.push_back({.flag = "--rollout-max-response-len",
                    .values = values_down_to(kLeast, config.rollout.max_response_len),
                    .set = setter(&TrainConfig::rollout, &RolloutConfig::max_response_len),
                    .cost = Lever::Cost::task});
  if (config.eval.interval && config.eval.max_response_len)
    levers.push_back({.flag = "--eval-max-response-len",
                      .values = values_down_to(kLeast, *config.eval.max_response_len),
                      .set = setter(&TrainConfig::eval, &EvalConfig::max_response_len),
                      .cost = Lever::Cost::task});
  return levers;
}

/// What lowers the trainer's need.
std::vector<Lever> trainer_levers(const TrainConfig& config, const TrainPlanInput& input,
                                  const TrainPlan& now) {
  constexpr int64_t kLeast = 16;  // rows or tokens: below that nobody wants to go
  std::vector<Lever> levers;
  if (config.recompute_num_layers) {
    std::vector<int64_t> values(
        static_cast<size_t>(now.memory.blocks - *config.recompute_num_layers + 1));
    std::iota(values.begin(), values.end(), *config.recompute_num_layers);
    levers.push_back({.flag = "--recompute-num-layers",
                      .values = std::move(values),
                      .set = [](TrainConfig& to, int64_t blocks) {
                        return *(to.recompute_num_layers = blocks);
                      }});
  }
  levers.push_back(
      {.flag = "--log-probs-chunk-size",
       .values = values_down_to(kLeast, now.memory.log_probs_chunk_size),
       .set = [](TrainConfig& to, int64_t rows) { return to.log_probs_chunk_size = rows; }});
  levers.push_back({.flag = "--max-tokens-per-gpu",
                    .values = values_down_to(kLeast, now.max_tokens_per_gpu),
                    .set = [&model = input.model](TrainConfig& to, int64_t tokens) {
                      const int64_t longest = max_sample_length(to, model);
                      return *(to.max_tokens_per_gpu = std::max(tokens, longest));
                    }});
  if (config.checkpoint.load.empty())  // a run that goes on keeps its steps
    levers.push_back({.flag = "--global-batch-size",
                      .values = smaller_steps(config.batch),
                      .set = set_step,
                      .cost = Lever::Cost::task,
                      // Both, for either may have been given.
                      .says = [samples = config.batch.samples_per_rollout()](int64_t size) {
                        return fmt::format("--num-steps-per-rollout {} --global-batch-size {}",
                                           samples / size, size);
                      }});
  return levers;
}

/// What that run would lack.
std::optional<Shortage> lack_of(const TrainConfig& config, const TrainPlanInput& input) {
  Planner planner(config, input);
  std::optional<Shortage> lack = planner.lack();
  if (!lack || lack->place == Place::device) return lack;
  planner.fill();
  return planner.lack();
}

std::string advice(const TrainConfig& config, const TrainPlanInput& input, const TrainPlan& now) {
  // A trainer that streams holds little unless it is told that it may; more of it there is less of
  // it on the host.
  DeviceConfig budgets = config.device;
  if (now.actor.placement == ActorPlacement::streamed && !budgets.gpu_memory_budget)
    budgets.gpu_memory_budget = now.memory.device_peak;
  Remedies remedies{.levers = budget_levers(budgets, now.memory, input.device),
                    .modes = other_modes(config.colocate)};
  const auto add = [&](const std::vector<Lever>& more) {
    remedies.levers.insert(remedies.levers.end(), more.begin(), more.end());
  };
  add(length_levers(config, input));
  add(trainer_levers(config, input, now));
  if (config.generates()) add(engine_levers(now.engine, input.model));
  return what_fits(config, remedies,
                   [&](const TrainConfig& other) { return lack_of(other, input); });
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
    fail(ErrorCode::budget, "{}. {}", does_not_fit(*lack), advice(config, input, planner.result()));
  return planner.result();
}

}  // namespace miles
