#include "rl/advantages.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace miles {
namespace {

/// Mean and unbiased standard deviation of a group's rewards.
struct GroupStats {
  double mean = 0;
  double std = 0;  // exactly 0 when all rewards are equal, whatever the mean's rounding
};

GroupStats stats_of(const std::vector<double>& rewards) {
  if (rewards.empty()) return {};
  const auto [least, most] = std::minmax_element(rewards.begin(), rewards.end());
  if (*least == *most) return {.mean = *least, .std = 0};
  double sum = 0;
  for (const double reward : rewards) sum += reward;
  const auto n = static_cast<double>(rewards.size());
  const double mean = sum / n;
  double squares = 0;
  for (const double reward : rewards) squares += (reward - mean) * (reward - mean);
  return {.mean = mean, .std = std::sqrt(squares / (n - 1))};
}

}  // namespace

std::vector<float> group_advantages(std::span<const Sample> samples, RewardNorm norm) {
  constexpr double kEpsilon = 1e-6;
  std::map<int64_t, std::vector<size_t>> groups;
  for (size_t i = 0; i < samples.size(); ++i) groups[samples[i].group_index].push_back(i);

  std::vector<float> advantages(samples.size(), 0.0F);
  for (const auto& [group_index, members] : groups) {
    MILES_CHECK(norm == RewardNorm::none || members.size() > 1,
                "group {} has one sample: its advantage would always be 0", group_index);
    std::vector<double> rewards;
    for (const size_t i : members) {
      if (!samples[i].reward) continue;
      MILES_CHECK(std::isfinite(*samples[i].reward), "sample {} has the reward {}",
                  samples[i].index, *samples[i].reward);
      rewards.push_back(*samples[i].reward);
    }
    const GroupStats stats = norm == RewardNorm::none ? GroupStats{} : stats_of(rewards);
    const double divisor = norm == RewardNorm::mean_std ? stats.std + kEpsilon : 1.0;
    for (const size_t i : members)
      if (samples[i].reward)
        advantages[i] = static_cast<float>((*samples[i].reward - stats.mean) / divisor);
  }
  return advantages;
}

int64_t mask_unscored(std::span<Sample> samples) {
  int64_t count = 0;
  for (Sample& sample : samples) {
    if (sample.reward) continue;
    std::fill(sample.loss_mask.begin(), sample.loss_mask.end(), 0);
    ++count;
  }
  return count;
}

}  // namespace miles
