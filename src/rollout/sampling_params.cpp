#include "rollout/sampling_params.h"

#include <cmath>

#include "base/error.h"

namespace miles {

void check_sampling_params(const SamplingParams& params) {
  // Written so that NaN fails too.
  if (!(params.temperature >= 0 && std::isfinite(params.temperature)))
    fail(ErrorCode::flags, "temperature is {}: it must be 0 (greedy) or a positive number",
         params.temperature);
  if (params.top_k != -1 && params.top_k < 1)
    fail(ErrorCode::flags, "top_k is {}: it must be at least 1, or -1 for all tokens",
         params.top_k);
  if (!(params.top_p > 0 && params.top_p <= 1))
    fail(ErrorCode::flags, "top_p is {}: it must be above 0 and at most 1", params.top_p);
  if (!(params.min_p >= 0 && params.min_p <= 1))
    fail(ErrorCode::flags, "min_p is {}: it must be between 0 and 1", params.min_p);
  if (params.max_new_tokens < 1)
    fail(ErrorCode::flags, "max_new_tokens is {}: it must be at least 1", params.max_new_tokens);
  if (params.min_new_tokens < 0 || params.min_new_tokens > params.max_new_tokens)
    fail(ErrorCode::flags, "min_new_tokens is {}: it must be between 0 and max_new_tokens ({})",
         params.min_new_tokens, params.max_new_tokens);
  for (const std::string& text : params.stop)
    if (text.empty()) fail(ErrorCode::flags, "a stop string is empty: leave it out");
  for (const int32_t id : params.stop_token_ids)
    if (id < 0) fail(ErrorCode::flags, "a stop token id is {}: ids start at 0", id);
}

float inverse_temperature(const SamplingParams& params) {
  return params.temperature < kGreedyTemperature ? 1.0F : 1.0F / params.temperature;
}

}  // namespace miles
