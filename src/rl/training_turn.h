// The trainer's turn: a rollout's samples become advantages, log-probs and optimizer steps.
#pragma once

#include <span>
#include <vector>

#include "actor/actor_model.h"
#include "observe/metrics.h"
#include "rl/sample.h"
#include "rl/train_config.h"

namespace miles {

/// Trains on the samples in their order, global_batch_size at a time, and returns Miles' train/*,
/// perf/* and rollout/* metrics of it. `advantages`: [samples], of every token of a sample.
Metrics training_turn(ActorModel& actor, const TrainConfig& config, std::span<const Sample> samples,
                      std::span<const float> advantages);

}  // namespace miles
