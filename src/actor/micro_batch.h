// Samples as the trainer sees them, and their packing into micro-batches without padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/batch.h"

namespace miles {

/// One sequence to learn from. Arrays of the response have one entry per response token, the last
/// `response_length` of `tokens`.
struct TrainSample {
  std::vector<int32_t> tokens;     // prompt, then response; at least one prompt token
  int64_t response_length = 0;     // tokens
  std::vector<int32_t> loss_mask;  // [response_length] 1: counts
  std::vector<float>
      old_log_probs;  // [response_length] under the policy that the ratio is taken against
  std::vector<float> ref_log_probs;  // [response_length] under the reference; empty without one
  std::vector<float> advantages;     // [response_length]; empty for supervised learning

  int64_t prompt_length() const { return static_cast<int64_t>(tokens.size()) - response_length; }
  int64_t masked_in() const;  // response tokens with mask 1
};

/// Which response token a row of logits predicts.
struct RowOrigin {
  int32_t sample = 0;    // index into the step's samples
  int32_t position = 0;  // index into its response
};

struct MicroBatch {
  HostBatch batch;                 // whole sequences, packed
  int64_t token_begin = 0;         // its first token among the step's, in packing order
  std::vector<int32_t> rows;       // [R] tokens whose successor is a response token
  std::vector<int32_t> targets;    // [R] that successor
  std::vector<RowOrigin> origins;  // [R]
};

/// First-fit-decreasing: the longest first, each into the first micro-batch with room, as Miles
/// packs. A pure function of the lengths. Every sample is at most `max_tokens` long.
std::vector<MicroBatch> pack_micro_batches(std::span<const TrainSample> samples,
                                           int64_t max_tokens);

/// At most that many micro-batches come of `tokens` tokens in `sequences` samples: of first-fit
/// bins only one can be less than half full.
int64_t most_micro_batches(int64_t tokens, int64_t sequences, int64_t max_tokens);

}  // namespace miles
