// The sizes of a training run as its flags say, and its plan: how much of which memory it takes, and
// whether that fits.
#pragma once

#include "colocate/memory_limits.h"
#include "rl/train_config.h"

namespace miles {

/// What a run's sizes follow from, beside its flags.
struct TrainPlanInput {
  const ModelConfig& model;
  const ParamLayout& layout;
  Device& device;
  int64_t num_rollout = 1;        // rollouts in all
  int64_t most_eval_prompts = 0;  // prompts of the largest evaluation set
  int64_t longest_prompt = 0;     // tokens of the longest prompt that comes; 0: not known
};

struct TrainPlan {
  int64_t max_tokens_per_gpu = 0;  // --max-tokens-per-gpu as given or chosen
  ActorOptions actor;              // whose number of that name is at most a step's
  EngineOptions engine;
  MemoryBudget budget;
  MemoryPlan memory;
};

/// Throws Error{flags} for sizes that cannot be, and Error{budget} that says what is lacking and
/// with which flags the run would fit.
TrainPlan plan_training(const TrainConfig& config, const TrainPlanInput& input);

/// How much of the device a run may hold for speed alone, bytes: streamed state that stays, and
/// activations when --recompute-num-layers is left open. `least` is the plan without any. The
/// budget where one was given. Without, what `least` takes anyway: memory that nobody spoke of
/// stays free. A GPU's is there to be used, unless the trainer streams, which is asked for to hold
/// little: nine tenths of what is free.
int64_t room_to_fill(const TrainConfig& config, const MemoryPlan& least, const MemoryBudget& budget,
                     const Device& device);

}  // namespace miles
