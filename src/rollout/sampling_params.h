// How one response is drawn and where it ends. Names and meanings are SGLang's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace miles {

struct SamplingParams {
  float temperature = 1;  // below 1e-6: greedy, and log-probs are those of temperature 1
  int32_t top_k = -1;     // draw among the k most likely; -1: all
  float top_p = 1;        // draw among the most likely with this mass, in (0, 1]
  float min_p = 0;        // draw what has at least this share of the largest probability, [0, 1]
  int64_t max_new_tokens = 128;  // tokens; cut so that prompt and response fit the context
  int64_t min_new_tokens = 0;    // tokens; before, no stop id is drawn and no stop string ends it
  std::vector<std::string> stop = {};        // the text ends before the first of them
  std::vector<int32_t> stop_token_ids = {};  // end it as eos does; part of the output
  bool ignore_eos = false;                   // the model's own eos ids do not end it
  bool skip_special_tokens = true;           // special tokens do not appear in the text
  std::optional<uint64_t> seed = {};         // none: the engine's
};

/// Temperatures below this are greedy.
inline constexpr float kGreedyTemperature = 1e-6F;

/// Refuses values outside what the fields above allow. Throws Error{flags} naming flag and value.
/// `flags`: what the flags' names begin with, "--rollout-" say.
void check_sampling_params(const SamplingParams& params, std::string_view flags = "--");

/// What the logits are multiplied by for the log-prob of a drawn token.
float inverse_temperature(const SamplingParams& params);

}  // namespace miles
