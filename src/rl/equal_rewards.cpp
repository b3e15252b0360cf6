#include "rl/equal_rewards.h"

#include <algorithm>

#include "base/log.h"

namespace miles {

void EqualRewards::watch(int64_t number, std::span<const Sample> samples,
                         std::span<const float> advantages) {
  constexpr int kInARow = 3;  // a few samples may be equal by chance
  const bool scored =
      std::ranges::any_of(samples, [](const Sample& sample) { return sample.reward.has_value(); });
  const bool equal =
      scored && std::ranges::all_of(advantages, [](float advantage) { return advantage == 0; });
  in_a_row_ = equal ? in_a_row_ + 1 : 0;
  if (in_a_row_ != kInARow || said_) return;
  said_ = true;
  log::warn(
      "{} rollouts in a row, up to {}, the rewards within each group were equal: all advantages "
      "are 0, and the reward teaches nothing (rollout/zero_std/count goes on counting such groups)",
      kInARow, number);
}

}  // namespace miles
