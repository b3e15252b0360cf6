// From prompts to scored samples: the half of a rollout that needs the engine and the rewards.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rl/data_source.h"
#include "rl/reward_command.h"
#include "rl/sample.h"
#include "rl/train_config.h"
#include "rollout/engine.h"

namespace miles {

/// Scores samples by rule or by the user's program.
class Scorer {
 public:
  /// Starts --custom-rm-command, if it is given. Throws Error{data} when it cannot start.
  explicit Scorer(const RewardConfig& config);

  /// Throws Error{data} when the command has ended before it was asked anything. Does not wait.
  void check_started();

  /// Sets each sample's reward. One that cannot be had stays empty, and the sample is failed and
  /// masked.
  void score(std::span<Sample> samples);

 private:
  RuleReward rule_;
  std::unique_ptr<RewardCommand> command_;  // null: the rule
};

/// What scores a run's samples; null for supervised learning without evaluation, which scores none.
std::unique_ptr<Scorer> make_scorer(const TrainConfig& config);

/// Generating and scoring throw Interrupted after a signal (base/interrupt.h).
class RolloutExecutor {
 public:
  /// All of these outlive it. `scorer`: make_scorer()'s.
  RolloutExecutor(const TrainConfig& config, const ModelConfig& model, const Tokenizer& tokenizer,
                  Engine& engine, Scorer* scorer);

  /// One rollout's samples: the next prompts of the source, n samples each, generated and scored.
  /// `weight_version`: of the weights that the engine must hold.
  std::vector<Sample> generate(DataSource& source, int64_t rollout_id, int64_t weight_version);

  /// Supervised learning: the next prompts with their labels as responses, and nothing generated.
  std::vector<Sample> supervised(DataSource& source, int64_t rollout_id);

  /// Every prompt of an evaluation set, scored. Draws do not depend on the rollout.
  std::vector<Sample> evaluate(const DataSource& source, int64_t rollout_id,
                               int64_t weight_version);

 private:
  /// What a round of generation is.
  struct Round {
    const char* what;  // "rollout" or "eval", for the progress
    SamplingParams params;
    int64_t max_length = 0;  // prompt and response, tokens
    int64_t rollout_id = 0;
    int64_t weight_version = 0;
  };
  void run(std::vector<Sample>& samples, const Round& round);

  const TrainConfig& config_;
  const ModelConfig& model_;
  const Tokenizer& tokenizer_;
  Engine& engine_;
  Scorer* scorer_;  // not owned; may be null
};

/// How a rollout's responses are drawn (--rollout-*).
SamplingParams rollout_sampling(const TrainConfig& config);

/// How an evaluation's are: --eval-* where given, --rollout-* otherwise, and other draws.
SamplingParams eval_sampling(const TrainConfig& config);

/// A prompt's ids. Where they would be none, BOS alone: a model that was trained to begin with it
/// sees it.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt);

/// Tokens that a sample can have at most: prompt and response, within the context.
int64_t max_sample_length(const TrainConfig& config, const ModelConfig& model);

/// The same for an evaluation's samples, whose responses may be longer.
int64_t max_eval_length(const TrainConfig& config, const ModelConfig& model);

}  // namespace miles
