// AdamW over the whole model, chunk by chunk, wherever the state is at rest.
#pragma once

#include <vector>

#include "actor/actor_options.h"
#include "actor/weight_store.h"
#include "ops/backend.h"

namespace miles {

class Optimizer {
 public:
  Optimizer(const OptimizerOptions& options, const ModelConfig& config, const ParamLayout& layout,
            WeightStore& store);

  /// One update from the gradients in the store. `grad_norm` is their global norm.
  void step(Exec& exec, double grad_norm);

  int64_t steps() const { return steps_; }                               // updates done
  void set_steps(int64_t steps) { steps_ = steps; }                      // on resume
  double learning_rate() const { return options_.schedule.at(steps_); }  // of the next update

 private:
  /// A run of one chunk under one weight decay.
  struct Span {
    int64_t offset = 0;  // elements from the chunk's start
    int64_t elements = 0;
    bool decayed = false;
  };
  std::vector<Span> spans_of(const Chunk& chunk) const;

  OptimizerOptions options_;
  const ModelConfig& config_;
  const ParamLayout& layout_;
  WeightStore& store_;
  std::vector<std::vector<Span>> spans_;  // [chunks]
  int64_t steps_ = 0;
};

}  // namespace miles
