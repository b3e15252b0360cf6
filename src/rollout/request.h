// What the engine is asked for and what it answers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rollout/sampling_params.h"
#include "rollout/sequence.h"
#include "rollout/stop_checker.h"

namespace miles {

struct GenerateRequest {
  int64_t id = 0;  // random stream: the sample's own number, the same when it is drawn again
  std::vector<int32_t> prompt = {};  // token ids, at least one
  SamplingParams params = {};
  int64_t group = kNoGroup;  // requests of one group with the same prompt compute it once
};

struct GenerateResult {
  int64_t ticket = 0;               // what add_request() returned
  int64_t id = 0;                   // the request's
  std::vector<int32_t> output_ids;  // drawn tokens, a stop id included
  std::vector<float> log_probs;     // [output_ids] under the whole distribution at the temperature
  std::string text;  // without stop id, cut before a stop string; empty without tokenizer
  Finish finish;
  int64_t preemptions = 0;    // times it was put off and its keys and values computed anew
  int64_t cached_tokens = 0;  // prompt tokens that another of its group computed
};

/// The engine after a step.
struct StepStats {
  int64_t running = 0;         // sequences that hold pages
  int64_t waiting = 0;         // sequences that do not
  int64_t prefill_tokens = 0;  // computed in this step
  int64_t decode_tokens = 0;   // computed in this step
  int64_t preempted = 0;       // sequences that lost their pages in this step
  int64_t free_pages = 0;      // of the key/value cache
  int64_t pages = 0;           // of the key/value cache, in all
};

struct GenerateControl {
  int64_t weight_version = 0;                                 // the weights that must be there
  std::function<void(const GenerateResult&)> on_finish = {};  // as each one ends
  std::function<bool()> should_abort = {};                    // before each step; true ends all
  std::function<void(const StepStats&)> on_step = {};         // after each step
};

}  // namespace miles
