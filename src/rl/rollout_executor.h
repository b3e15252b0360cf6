// From prompts to scored samples: the half of a rollout that needs the engine and the rewards.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rl/data_source.h"
#include "rl/scorer.h"
#include "rollout/engine.h"

namespace miles {

/// Generating and scoring throw Interrupted after a signal (base/interrupt.h).
class RolloutExecutor {
 public:
  /// All of these outlive it. `scorer`: make_scorer()'s.
  RolloutExecutor(const TrainConfig& config, const ModelConfig& model, const Tokenizer& tokenizer,
                  Engine& engine, Scorer* scorer);

  /// Responses to a rollout's samples (DataSource::next_groups), and their rewards.
  /// `weight_version`: of the weights that the engine must hold.
  void generate(std::span<Sample> samples, int64_t rollout_id, int64_t weight_version);

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
  void run(std::span<Sample> samples, const Round& round);

  const TrainConfig& config_;
  const ModelConfig& model_;
  const Tokenizer& tokenizer_;
  Engine& engine_;
  Scorer* scorer_;  // not owned; may be null
};

}  // namespace miles
