#include "rl/sampling.h"

#include <algorithm>

namespace miles {
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

int64_t max_length_drawn(const TrainConfig& config, const ModelConfig& model) {
  const int64_t sample = max_sample_length(config, model);
  return config.eval.interval ? std::max(sample, max_eval_length(config, model)) : sample;
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

}  // namespace miles
