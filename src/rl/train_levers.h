// What a training run's need of memory follows from, and how it could be less.
#pragma once

#include "rl/levers.h"
#include "rl/train_plan.h"

namespace miles {

/// For what_fits(): all that may be changed of `config`, whose plan is `now`. Refers to `input`.
Remedies train_remedies(const TrainConfig& config, const TrainPlanInput& input,
                        const TrainPlan& now);

}  // namespace miles
