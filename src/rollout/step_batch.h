// One step's input, on the host: the tokens to compute and the rows to draw from.
#pragma once

#include <cstdint>
#include <vector>

#include "model/batch.h"
#include "ops/sample.h"
#include "rollout/scheduler.h"

namespace miles {

/// A token that must not be drawn.
struct Ban {
  int64_t draw = 0;  // index of the draw
  int32_t id = 0;
};

/// R draws, one for each piece that reaches the end of its sequence, in the order of the pieces.
struct StepBatch {
  HostBatch tokens;                        // a piece is a sequence of the batch
  std::vector<int32_t> rows;               // [R] row of the batch whose logits are drawn from
  std::vector<SampleRow> samples;          // [R] how
  std::vector<float> inverse_temperature;  // [R] of the log-probs
  std::vector<Ban> bans;                   // stop ids of sequences that must go on

  int64_t draws() const { return static_cast<int64_t>(rows.size()); }
  /// Every sequence has one token, and one is drawn for it.
  bool is_decode() const {
    return tokens.tokens() == tokens.sequences() && draws() == tokens.sequences();
  }
};

/// The same with tokens that belong to nobody, so that it has `sequences` sequences and page tables
/// of `pages`: a step of one token a sequence then has one of few shapes. The additional tokens
/// read one row of page 0, write nothing, and draw what nobody reads. Where sequences share keys,
/// there are as many runs as there could be.
StepBatch padded_step(const StepBatch& step, int64_t sequences, int64_t pages);

/// `seed`: for sequences that have none of their own.
StepBatch make_step_batch(const StepPlan& plan, int64_t page_size, uint64_t seed);

}  // namespace miles
