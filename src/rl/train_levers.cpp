#include "rl/train_levers.h"

#include <algorithm>
#include <numeric>

#include "rl/device_setup.h"
#include "rl/sampling.h"

namespace miles {
namespace {

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

}  // namespace

Remedies train_remedies(const TrainConfig& config, const TrainPlanInput& input,
                        const TrainPlan& now) {
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
  return remedies;
}

}  // namespace miles
