// The end of the model: final norm and the projection to the vocabulary, in f32. One code for
// trainer and engine; never more rows than the caller has room for.
#pragma once

#include "model/config.h"
#include "model/layout.h"
#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

struct HeadWeights {
  Tensor norm;     // [H] T
  Tensor lm_head;  // [V, H] T: the embedding itself when tied
};

/// Views of the head. `embed` and `head` are the starts of the two groups (model/layout.h).
HeadWeights view_head(const ModelConfig& config, const ParamLayout& layout, std::byte* embed,
                      std::byte* head, DType dtype);

struct HeadArgs {
  HeadWeights weights;
  Tensor x;       // [R, H] T: rows of the residual stream; changed only by delta
  Tensor delta;   // [R, H] T: what is still to be added to x; or empty
  Tensor normed;  // [R, H] T, written
  Tensor rstd;    // [R] f32, written; or empty
  Tensor logits;  // [R, V] f32, written
  float eps = 0;  // of the norm
};

/// x += delta;  logits = RMSNorm(x) · lm_headᵀ.
void head_logits(Exec& exec, const HeadArgs& args);

}  // namespace miles
