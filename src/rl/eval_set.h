// What a model is evaluated on: sets of prompts by name.
#pragma once

#include <string>
#include <vector>

#include "rl/data_source.h"
#include "rl/train_config.h"

namespace miles {

/// An evaluation set under its name.
struct EvalSet {
  std::string name;
  DataSource source;
};

/// --eval-prompt-data NAME PATH [NAME PATH …]. Throws Error{flags}, also for names that
/// would share a metric, or Error{data}.
std::vector<EvalSet> load_eval_sets(const TrainConfig& config);

}  // namespace miles
