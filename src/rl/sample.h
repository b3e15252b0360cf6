// One response to one prompt, with all that the loop knows of it. Fields are Miles'
// (utils/types.py).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace miles {

enum class SampleStatus {
  pending,    // not generated yet
  completed,  // ended by a stop id or a stop string
  truncated,  // ended by the length limit
  aborted,    // ended from outside; the response so far is kept
  failed,     // its reward could not be had: masked out of the loss and counted, never scored 0
};

std::string_view name_of(SampleStatus status);

struct Sample {
  int64_t group_index = 0;  // prompt's number since the start of the run; its n samples share it
  int64_t index = 0;        // sample's number since the start of the run
  int64_t rollout_id = 0;   // rollout that made it
  std::string prompt;       // text as given to the tokenizer
  std::vector<int32_t> tokens;           // prompt ids, then response ids
  std::string response;                  // decoded response, trimmed at a stop string
  int64_t response_length = 0;           // tokens of the response: the last ones of `tokens`
  std::string label;                     // expected answer; empty when there is none
  std::optional<double> reward;          // none until scored, and for ever when scoring failed
  std::vector<int32_t> loss_mask;        // [response_length] 1: takes part in the loss
  std::vector<float> rollout_log_probs;  // [response_length] log-probs under the rollout's policy
  int64_t weight_version = -1;           // version of the weights that made it
  int64_t num_retractions = 0;           // times it lost its KV pages and was computed anew
  SampleStatus status = SampleStatus::pending;
  nlohmann::json metadata;  // the data row's own; never read by the loop

  int64_t prompt_length() const { return static_cast<int64_t>(tokens.size()) - response_length; }
};

/// The sample as one object of samples.jsonl, under Miles' field names. Bytes that are no UTF-8 (a
/// response cut inside a character) become U+FFFD, log-probs that are not finite become null, a
/// missing reward is null.
nlohmann::json to_json(const Sample& sample);

/// Every array is as long as it must be; otherwise aborts, naming the sample.
/// (A response whose ids and log-probs differ in length has poisoned runs elsewhere.)
void check_sample(const Sample& sample);

}  // namespace miles
