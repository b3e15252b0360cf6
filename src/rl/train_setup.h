// All that is worked out and checked before anything is loaded: models, data, sizes, and whether it
// fits.
#pragma once

#include <memory>
#include <optional>

#include "rl/data_source.h"
#include "rl/eval_set.h"
#include "rl/train_plan.h"

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
  std::unique_ptr<Device> device;
  TrainPlan plan;
};

/// Throws Error{flags}, Error{data}, Error{budget} or Error{device}: what is wrong is said before
/// anything is loaded.
TrainSetup prepare_training(TrainConfig config);

/// What the labels of prompts are for.
enum class LabelUse { scored, learned };

/// Keeps the prompts of `path` whose labels can be used: learned ones are not empty, and the rule
/// can compare with scored ones (a --custom-rm-command takes any). Throws Error{data} when none is
/// left.
void keep_labelled_prompts(DataSource& data, const std::string& path, const RewardConfig& reward,
                           LabelUse use);

/// Keeps the prompts that fit `max_prompt_len` tokens; returns the length of the longest. Throws
/// Error{data} when none is left.
int64_t keep_fitting_prompts(DataSource& data, const Tokenizer& tokenizer, int64_t max_prompt_len);

}  // namespace miles
