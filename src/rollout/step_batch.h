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
};

/// `seed`: for sequences that have none of their own.
StepBatch make_step_batch(const StepPlan& plan, int64_t page_size, uint64_t seed);

}  // namespace miles
