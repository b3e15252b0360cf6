#include "rl/rollout_executor.h"

#include <algorithm>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "observe/progress.h"

namespace miles {

// --- Scorer ---

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
  if (config.algorithm.loss.type == LossType::sft_loss && !config.eval.interval) return nullptr;
  return std::make_unique<Scorer>(config.reward);
}

// --- RolloutExecutor ---

namespace {

int64_t max_length(const RolloutConfig& rollout, int64_t response, const ModelConfig& model) {
  int64_t length = rollout.max_prompt_len + response;
  if (rollout.max_context_len) length = std::min(length, *rollout.max_context_len);
  return std::min(length, model.max_position_embeddings);
}

}  // namespace

int64_t max_sample_length(const TrainConfig& config, const ModelConfig& model) {
  return max_length(config.rollout, config.rollout.max_response_len, model);
}

int64_t max_eval_length(const TrainConfig& config, const ModelConfig& model) {
  return max_length(config.rollout,
                    config.eval.max_response_len.value_or(config.rollout.max_response_len), model);
}

RolloutExecutor::RolloutExecutor(const TrainConfig& config, const ModelConfig& model,
                                 const Tokenizer& tokenizer, Engine& engine, Scorer* scorer)
    : config_(config), model_(model), tokenizer_(tokenizer), engine_(engine), scorer_(scorer) {}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<int32_t> ids = tokenizer.encode(prompt);
  if (ids.empty() && tokenizer.bos_id()) ids.push_back(*tokenizer.bos_id());
  return ids;
}

SamplingParams rollout_sampling(const TrainConfig& config) {
  const RolloutConfig& rollout = config.rollout;
  SamplingParams params;
  params.temperature = static_cast<float>(rollout.temperature);
  params.top_p = static_cast<float>(rollout.top_p);
  params.top_k = rollout.top_k;
  params.min_p = static_cast<float>(rollout.min_p);
  params.max_new_tokens = rollout.max_response_len;
  params.stop = rollout.stop;
  params.stop_token_ids = rollout.stop_token_ids;
  params.ignore_eos = rollout.ignore_eos;
  params.skip_special_tokens = rollout.skip_special_tokens;
  return params;
}

SamplingParams eval_sampling(const TrainConfig& config) {
  SamplingParams params = rollout_sampling(config);
  const EvalConfig& eval = config.eval;
  if (eval.temperature) params.temperature = static_cast<float>(*eval.temperature);
  if (eval.top_p) params.top_p = static_cast<float>(*eval.top_p);
  if (eval.top_k) params.top_k = *eval.top_k;
  if (eval.max_response_len) params.max_new_tokens = *eval.max_response_len;
  // Another seed than the training draws', or an evaluation would replay them.
  params.seed = config.rollout.seed ^ 0x65766172ULL;
  return params;
}

std::vector<Sample> RolloutExecutor::generate(DataSource& source, int64_t rollout_id,
                                              int64_t weight_version) {
  std::vector<Sample> samples;
  for (int64_t p = 0; p < config_.batch.rollout_batch_size; ++p) {
    auto group = source.next_group(config_.batch.n_samples_per_prompt);
    std::move(group.begin(), group.end(), std::back_inserter(samples));
  }
  run(samples, {.what = "rollout",
                .params = rollout_sampling(config_),
                .max_length = max_sample_length(config_, model_),
                .rollout_id = rollout_id,
                .weight_version = weight_version});
  return samples;
}

std::vector<Sample> RolloutExecutor::supervised(DataSource& source, int64_t rollout_id) {
  std::vector<Sample> samples;
  const int64_t longest = max_sample_length(config_, model_);
  int64_t cut = 0;
  for (int64_t p = 0; p < config_.batch.rollout_batch_size; ++p) {
    for (Sample& sample : source.next_group(config_.batch.n_samples_per_prompt)) {
      sample.rollout_id = rollout_id;
      sample.tokens = encode_prompt(tokenizer_, sample.prompt);
      const auto prompt_length = static_cast<int64_t>(sample.tokens.size());
      std::vector<int32_t> answer = tokenizer_.encode(sample.label, {.add_special = false});
      if (!model_.eos_token_ids.empty()) answer.push_back(model_.eos_token_ids.front());
      sample.status = SampleStatus::completed;
      if (prompt_length + static_cast<int64_t>(answer.size()) > longest) {
        answer.resize(static_cast<size_t>(longest - prompt_length));
        sample.status = SampleStatus::truncated;
        ++cut;
      }
      sample.response = sample.label;
      sample.response_length = static_cast<int64_t>(answer.size());
      sample.tokens.insert(sample.tokens.end(), answer.begin(), answer.end());
      sample.loss_mask.assign(answer.size(), 1);
      sample.rollout_log_probs.assign(answer.size(), 0.0F);
      samples.push_back(std::move(sample));
    }
  }
  if (cut > 0)
    log::warn("rollout {}: {} labels were cut at {} tokens", rollout_id + 1, cut, longest);
  return samples;
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

void RolloutExecutor::run(std::vector<Sample>& samples, const Round& round) {
  std::vector<GenerateRequest> requests;
  for (Sample& sample : samples) {
    sample.rollout_id = round.rollout_id;
    sample.tokens = encode_prompt(tokenizer_, sample.prompt);
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
