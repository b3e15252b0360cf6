#include "rl/rollout_metrics.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace miles {
namespace {

/// The rewards of one group, as far as it takes to see whether they differ.
struct GroupRewards {
  int64_t count = 0;
  double least = 0;
  double most = 0;

  void add(double reward) {
    least = count == 0 ? reward : std::min(least, reward);
    most = count == 0 ? reward : std::max(most, reward);
    ++count;
  }
};

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

void add_rewards(std::span<const Sample> samples, std::span<const float> advantages,
                 NamedValues& metrics) {
  std::vector<double> rewards, normalised;
  std::map<int64_t, GroupRewards> groups;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].reward) continue;
    rewards.push_back(*samples[i].reward);
    normalised.push_back(advantages[i]);
    groups[samples[i].group_index].add(*samples[i].reward);
  }
  if (!rewards.empty()) {
    metrics.emplace_back("rollout/raw_reward", mean_of(rewards));
    metrics.emplace_back("rollout/rewards", mean_of(normalised));
  }
  const auto zero_std = std::count_if(groups.begin(), groups.end(), [](const auto& entry) {
    const GroupRewards& group = entry.second;
    return group.count > 1 && group.least == group.most;
  });
  metrics.emplace_back("rollout/zero_std/count", static_cast<double>(zero_std));
  metrics.emplace_back("rollout/reward_error",
                       static_cast<double>(samples.size() - rewards.size()));
}

void add_lengths(std::span<const Sample> samples, NamedValues& metrics) {
  std::vector<double> lengths;
  for (const Sample& sample : samples)
    lengths.push_back(static_cast<double>(sample.response_length));
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  metrics.emplace_back("rollout/response_len/mean", mean_of(lengths));
  metrics.emplace_back("rollout/response_len/median", median_of(lengths));
  metrics.emplace_back("rollout/response_len/max", *most);
  metrics.emplace_back("rollout/response_len/min", *least);
}

template <class Predicate>
double share_of(std::span<const Sample> samples, Predicate predicate) {
  return static_cast<double>(std::count_if(samples.begin(), samples.end(), predicate)) /
         static_cast<double>(samples.size());
}

std::span<const int32_t> response_of(const Sample& sample) {
  return std::span(sample.tokens).last(static_cast<size_t>(sample.response_length));
}

}  // namespace

NamedValues rollout_metrics(std::span<const Sample> samples, std::span<const float> advantages) {
  MILES_CHECK(samples.size() == advantages.size(), "{} samples, {} advantages", samples.size(),
              advantages.size());
  NamedValues metrics;
  if (samples.empty()) return metrics;
  add_rewards(samples, advantages, metrics);
  add_lengths(samples, metrics);
  metrics.emplace_back("rollout/truncated_ratio", share_of(samples, [](const Sample& sample) {
                         return sample.status == SampleStatus::truncated;
                       }));
  metrics.emplace_back("rollout/repetition_frac", share_of(samples, [](const Sample& sample) {
                         return ends_in_loop(response_of(sample));
                       }));
  double retractions = 0;
  for (const Sample& sample : samples) retractions += static_cast<double>(sample.num_retractions);
  metrics.emplace_back("rollout/num_retractions", retractions);
  return metrics;
}

bool ends_in_loop(std::span<const int32_t> tokens) {
  constexpr size_t kTail = 2048, kLeastTokens = 32, kLeastTimes = 4;
  const size_t n = std::min(tokens.size(), kTail);
  const auto from_end = [&tokens](size_t i) { return tokens[tokens.size() - 1 - i]; };
  // border[i]: longest proper prefix of the reversed tail's first i+1 tokens that also ends them
  // (Knuth, Morris and Pratt 1977). i+1 - border[i] is then the length of the phrase that the last
  // i+1 tokens repeat.
  std::vector<size_t> border(n, 0);
  for (size_t i = 1; i < n; ++i) {
    size_t k = border[i - 1];
    while (k > 0 && from_end(i) != from_end(k)) k = border[k - 1];
    border[i] = from_end(i) == from_end(k) ? k + 1 : 0;
    const size_t length = i + 1;
    if (length >= kLeastTokens && length >= kLeastTimes * (length - border[i])) return true;
  }
  return false;
}

}  // namespace miles
