#include "rl/scorer.h"

namespace miles {

Scorer::Scorer(const RewardConfig& config) : rule_(config.rule) {
  if (config.custom_rm_command.empty()) return;
  command_ =
      std::make_unique<RewardCommand>(RewardCommandOptions{.command = config.custom_rm_command,
                                                           .workers = config.rm_workers,
                                                           .timeout_seconds = config.rm_timeout});
  command_->await_start();
}

void Scorer::check_started() {
  if (command_) command_->check_started();
}

void Scorer::score(std::span<Sample> samples) {
  std::vector<RewardResult> results;
  if (command_) {
    std::vector<RewardRequest> requests;
    for (const Sample& sample : samples)
      requests.push_back({.id = sample.index,
                          .prompt = sample.prompt,
                          .response = sample.response,
                          .label = sample.label,
                          .metadata = sample.metadata});
    results = command_->score(requests);
  } else {
    for (const Sample& sample : samples)
      results.push_back(rule_.score(sample.response, sample.label));
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].reward = results[i].reward;
    if (!results[i].reward) samples[i].status = SampleStatus::failed;
  }
  mask_unscored(samples);
}

std::unique_ptr<Scorer> make_scorer(const TrainConfig& config) {
  if (!config.generates()) return nullptr;
  return std::make_unique<Scorer>(config.reward);
}

}  // namespace miles
