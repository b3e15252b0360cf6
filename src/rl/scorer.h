// Rewards of samples: by the rule, or by the user's program.
#pragma once

#include <memory>
#include <span>

#include "rl/reward_command.h"
#include "rl/sample.h"
#include "rl/train_config.h"

namespace miles {

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

/// What scores a run's samples; null where none are drawn (TrainConfig::generates).
std::unique_ptr<Scorer> make_scorer(const TrainConfig& config);

}  // namespace miles
