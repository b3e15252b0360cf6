// All that is worked out and checked before anything is loaded: models, data, sizes, and whether it
// fits.
#pragma once

#include <memory>
#include <optional>

#include "colocate/plan.h"
#include "rl/data_source.h"
#include "rl/eval_set.h"
#include "rl/train_config.h"

namespace miles {

struct TrainSetup {
  TrainConfig config;  // with everything that was left open filled in
  ModelSource model;
  std::optional<ModelSource> reference;  // of --ref-load; none: the first weights, if one is needed
  ParamLayout layout;
  Tokenizer tokenizer;
  DataSource data;
  std::vector<EvalSet> eval_sets;
  int64_t num_rollout = 0;  // rollouts in all
  ActorOptions actor;
  EngineOptions engine;
  MemoryBudget budget;
  std::unique_ptr<Device> device;
  MemoryPlan plan;
};

/// Throws Error{flags}, Error{data}, Error{budget} or Error{device}: what is wrong is said before
/// anything is loaded.
TrainSetup prepare_training(TrainConfig config);

/// The device that was asked for. Throws Error{device} when it is not there.
std::unique_ptr<Device> make_device(DeviceChoice choice);

/// What may be used: as the flags say, else the host's memory and what is free of the device, less
/// what driver and libraries will still take. Throws Error{flags} when the device is the CPU and a
/// flag gives more than the machine has.
MemoryBudget resolve_budget(const DeviceConfig& config, const Device& device);

/// How much of the device a run may hold for speed alone, bytes: streamed state that stays, and
/// activations when --recompute-num-layers is left open. `least` is the plan without any. The
/// budget where one was given. Without, what `least` takes anyway: memory that nobody spoke of
/// stays free. A GPU's is there to be used, unless the trainer streams, which is asked for to hold
/// little: nine tenths of what is free.
int64_t room_to_fill(const TrainConfig& config, const MemoryPlan& least, const MemoryBudget& budget,
                     const Device& device);

/// Throws Error{budget} when there is less than the plan needs, whatever the budget says.
void check_device_has(const MemoryPlan& plan, const Device& device);

/// The engine's options as the flags say, the others as suits the device. `max_context_len`:
/// tokens of the longest sample. `requests`: that may come at once. Throws Error{flags} when the
/// KV cache cannot hold one sample.
EngineOptions resolve_engine(const EngineConfig& config, DeviceKind device, int64_t max_context_len,
                             int64_t requests);

/// Throws Error{flags} when a KV cache of --max-total-tokens cannot hold one sample of `longest`
/// tokens.
void check_cache_holds(int64_t max_total_tokens, int64_t longest);

/// What the labels of prompts are for.
enum class LabelUse { scored, learned };

/// Keeps the prompts of `path` whose labels can be used: learned ones are not empty, and the rule
/// can compare with scored ones (a --custom-rm-command takes any). Throws Error{data} when none is
/// left.
void keep_labelled_prompts(DataSource& data, const std::string& path, const RewardConfig& reward,
                           LabelUse use);

/// Keeps the prompts that fit `max_prompt_len` tokens. Throws Error{data} when none is left.
void keep_fitting_prompts(DataSource& data, const Tokenizer& tokenizer, int64_t max_prompt_len);

}  // namespace miles
