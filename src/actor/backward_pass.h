// The block-major backward, from the loss at the head to the embedding. Each group's gradient is
// summed in f32 over all micro-batches and leaves once, in the weights' dtype, to the gradient
// store.
#pragma once

#include "actor/forward_pass.h"
#include "actor/loss.h"

namespace miles {

struct BackwardResult {
  LossReport loss;
  double grad_norm = 0;  // global, of the gradients as stored; not finite when any is not
};

/// After forward_layers(pass, Keep::all): loss, gradients of all weights in `store.gradients()`,
/// and their norm. Residual blocks are overwritten by their gradients on the way.
BackwardResult backward(const Pass& pass, WeightStore& store, std::span<const TrainSample> samples,
                        const LossOptions& options);

}  // namespace miles
