// How responses are drawn, and how long a sample may become: what the flags say, for rollouts and
// for evaluations.
#pragma once

#include "model/config.h"
#include "rl/train_config.h"
#include "rollout/sampling_params.h"

namespace miles {

/// How a rollout's responses are drawn (--rollout-*).
SamplingParams rollout_sampling(const TrainConfig& config);

/// How an evaluation's are: --eval-* where given, --rollout-* otherwise, and other draws.
SamplingParams eval_sampling(const TrainConfig& config);

/// Tokens that a sample can have at most: prompt and response, within the context.
int64_t max_sample_length(const TrainConfig& config, const ModelConfig& model);

/// The same for an evaluation's samples, whose responses may be longer.
int64_t max_eval_length(const TrainConfig& config, const ModelConfig& model);

/// The longest of both that the engine of a run draws.
int64_t max_length_drawn(const TrainConfig& config, const ModelConfig& model);

}  // namespace miles
