// From rewards to advantages. GRPO (Shao et al. 2024, DeepSeekMath, outcome
// supervision): every token of a response has its sample's advantage, so that one number a sample
// is all there is to compute.
#pragma once

#include <span>
#include <vector>

#include "rl/sample.h"

namespace miles {

/// How a reward is compared with those of its group (the samples with its group_index).
enum class RewardNorm {
  none,      // the reward itself (--disable-rewards-normalization)
  mean,      // r - mean: Dr. GRPO, Liu et al. 2025 (--disable-grpo-std-normalization)
  mean_std,  // (r - mean) / (std + 1e-6), std unbiased
};

/// The advantage of every token of sample i: [samples]. The samples of a group may lie anywhere.
/// A sample without a reward takes part in no mean and no std; its advantage is 0. In a group of
/// equal rewards, or with a single reward left, everybody's is exactly 0 (except with
/// RewardNorm::none). Every group must have two samples or more unless the norm is none (batch
/// sizes are checked at the start).
std::vector<float> group_advantages(std::span<const Sample> samples, RewardNorm norm);

/// Takes the samples without a reward out of the loss: their loss_mask becomes all 0. Returns how
/// many there were.
int64_t mask_unscored(std::span<Sample> samples);

}  // namespace miles
