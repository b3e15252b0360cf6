#include "rl/rollout_executor.h"

#include <algorithm>

#include "base/error.h"
#include "base/interrupt.h"
#include "observe/progress.h"
#include "rl/sampling.h"

namespace miles {

RolloutExecutor::RolloutExecutor(const TrainConfig& config, const ModelConfig& model,
                                 const Tokenizer& tokenizer, Engine& engine, Scorer* scorer)
    : config_(config), model_(model), tokenizer_(tokenizer), engine_(engine), scorer_(scorer) {}

void RolloutExecutor::generate(std::span<Sample> samples, int64_t rollout_id,
                               int64_t weight_version) {
  run(samples, {.what = "rollout",
                .params = rollout_sampling(config_),
                .max_length = max_sample_length(config_, model_),
                .rollout_id = rollout_id,
                .weight_version = weight_version});
}

std::vector<Sample> RolloutExecutor::evaluate(const DataSource& source, int64_t rollout_id,
                                              int64_t weight_version) {
  std::vector<Sample> samples;
  int64_t group = 0;
  for (const Prompt& prompt : source.prompts()) {
    for (int64_t i = 0; i < config_.eval.n_samples_per_prompt; ++i) {
      Sample sample;
      sample.group_index = group;
      sample.index = static_cast<int64_t>(samples.size());
      sample.prompt = prompt.text;
      sample.label = prompt.label;
      sample.metadata = prompt.metadata;
      samples.push_back(std::move(sample));
    }
    ++group;
  }
  run(samples, {.what = "eval",
                .params = eval_sampling(config_),
                .max_length = max_eval_length(config_, model_),
                .rollout_id = rollout_id,
                .weight_version = weight_version});
  return samples;
}

void RolloutExecutor::run(std::span<Sample> samples, const Round& round) {
  std::vector<GenerateRequest> requests;
  for (Sample& sample : samples) {
    sample.rollout_id = round.rollout_id;
    sample.tokens = tokenizer_.encode_prompt(sample.prompt);
    SamplingParams params = round.params;
    params.max_new_tokens = std::min(params.max_new_tokens,
                                     round.max_length - static_cast<int64_t>(sample.tokens.size()));
    requests.push_back({.id = sample.index,
                        .prompt = sample.tokens,
                        .params = std::move(params),
                        .group = sample.group_index});
  }
  std::vector<GenerateResult> results;
  {
    Progress progress(fmt::format("{} {}", round.what, round.rollout_id + 1),
                      static_cast<int64_t>(requests.size()), "samples");
    results = engine_.generate(requests,
                               {.weight_version = round.weight_version,
                                .on_finish = [&](const GenerateResult&) { progress.advance(); },
                                .should_abort = {},
                                .on_step =
                                    [this](const StepStats&) {
                                      scorer_->check_started();  // one that needs a while to fail
                                                                 // is not waited for to the end
                                      stop_if_interrupted();
                                    }});
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    Sample& sample = samples[i];
    GenerateResult& result = results[i];
    sample.response = std::move(result.text);
    sample.response_length = static_cast<int64_t>(result.output_ids.size());
    sample.tokens.insert(sample.tokens.end(), result.output_ids.begin(), result.output_ids.end());
    sample.rollout_log_probs = std::move(result.log_probs);
    sample.loss_mask.assign(result.output_ids.size(), 1);
    sample.weight_version = round.weight_version;
    sample.num_retractions = result.preemptions;
    switch (result.finish.reason) {
      case FinishReason::length:
        sample.status = SampleStatus::truncated;
        break;
      case FinishReason::abort:
        sample.status = SampleStatus::aborted;
        break;
      default:
        sample.status = SampleStatus::completed;
    }
  }
  scorer_->score(samples);
  for (const Sample& sample : samples) check_sample(sample);
}

}  // namespace miles
