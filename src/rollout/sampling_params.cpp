#include "rollout/sampling_params.h"

#include <cmath>

#include "base/error.h"

namespace miles {

void check_sampling_params(const SamplingParams& params, std::string_view flags) {
  // Written so that NaN fails too.
  if (!(params.temperature >= 0 && std::isfinite(params.temperature)))
    fail(ErrorCode::flags, "{}temperature is {}: it must be 0 (greedy) or a positive number", flags,
         params.temperature);
  if (params.top_k != -1 && params.top_k < 1)
    fail(ErrorCode::flags, "{}top-k is {}: it must be at least 1, or -1 for all tokens", flags,
         params.top_k);
  if (!(params.top_p > 0 && params.top_p <= 1))
    fail(ErrorCode::flags, "{}top-p is {}: it must be above 0 and at most 1", flags, params.top_p);
  if (!(params.min_p >= 0 && params.min_p <= 1))
    fail(ErrorCode::flags, "{}min-p is {}: it must be between 0 and 1", flags, params.min_p);
  // Flags of several names say how long a response may be; none says how long it must.
  if (params.max_new_tokens < 1)
    fail(ErrorCode::flags, "a response of at most {} tokens: it must be at least 1",
         params.max_new_tokens);
  if (params.min_new_tokens < 0 || params.min_new_tokens > params.max_new_tokens)
    fail(ErrorCode::flags,
         "a response of at least {} tokens: it must be between 0 and {}, its most",
         params.min_new_tokens, params.max_new_tokens);
  for (const std::string& text : params.stop)
    if (text.empty()) fail(ErrorCode::flags, "{}stop: a string is empty: leave it out", flags);
  for (const int32_t id : params.stop_token_ids)
    if (id < 0) fail(ErrorCode::flags, "{}stop-token-ids: {}: ids start at 0", flags, id);
}

float inverse_temperature(const SamplingParams& params) {
  return params.temperature < kGreedyTemperature ? 1.0F : 1.0F / params.temperature;
}

}  // namespace miles
