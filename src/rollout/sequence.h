// One response in the making: its tokens, how much of it the key/value cache holds, and where.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rollout/block_manager.h"
#include "rollout/sampling_params.h"
#include "rollout/stop_checker.h"

namespace miles {

/// The group of a sequence that shares its prompt with none.
inline constexpr int64_t kNoGroup = -1;

struct Sequence {
  int64_t ticket = 0;                 // number of arrival, unique in an engine
  int64_t id = 0;                     // random stream: the caller's number of the sample
  int64_t group = kNoGroup;           // sequences of a group with the same prompt compute it once
  SamplingParams params;              // how it is drawn and where it ends
  std::vector<int32_t> tokens;        // prompt, then what has been drawn; while the last one is
                                      // being drawn, id_of_draw() of it
  int64_t prompt_length = 0;          // tokens of the prompt, at least 1
  int64_t max_length = 0;             // tokens at which it ends
  std::vector<float> log_probs;       // [drawn] log-prob of each drawn token
  std::unique_ptr<StopChecker> stop;  // knows the text so far; null in tests of the bookkeeping

  int64_t computed = 0;       // tokens from the start whose keys and values are in the cache
  PageTable pages;            // pages it holds; none while it waits
  int64_t cached_tokens = 0;  // prompt tokens that it took from its group, when first started
  int64_t preemptions = 0;    // times it lost its pages and had to start over

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t drawn() const { return length() - prompt_length; }  // the one being drawn included
};

}  // namespace miles
