// A reward that is the same for all is the commonest way to train for a day on nothing.
#pragma once

#include <cstdint>
#include <span>

#include "rl/sample.h"

namespace miles {

/// Says once that rollout after rollout has taught nothing.
class EqualRewards {
 public:
  /// A rollout's samples, and their advantages in the same order; `number` counts from 1.
  void watch(int64_t number, std::span<const Sample> samples, std::span<const float> advantages);

 private:
  int in_a_row_ = 0;  // rollouts, up to the last one
  bool said_ = false;
};

}  // namespace miles
