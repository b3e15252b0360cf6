// Drawing the next token. A draw is a pure function of the row's logits, its settings and its
// random number: it does not depend on the batch.
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// How one row is drawn. Filters apply in SGLang's order: temperature, top-k, top-p, min-p; each
/// looks at the softmax of all logits over the temperature, and equals are ranked by lower id. The
/// likeliest token always survives.
struct SampleRow {
  float temperature = 1;  // below 1e-6: the largest logit, lowest id among equals
  int top_k = -1;         // keep the k most likely; below 1: all
  float top_p = 1;        // keep the smallest set of the most likely with mass ≥ top_p
  float min_p = 0;        // keep what has at least min_p times the largest probability
  float uniform = 0.5F;   // the random number that the draw is made with, in (0, 1)
};

/// NaN counts as −∞. Where every logit is −∞ the token is −1, for the caller to report; where some
/// are +∞ it is the first of them. V is at most 2^20.
struct SampleArgs {
  Tensor logits;  // [N, V] f32
  Tensor rows;    // [N · sizeof(SampleRow)] u8: a SampleRow for each row
  Tensor tokens;  // [N] i32, written
};
void sample(Exec& exec, const SampleArgs& args);

}  // namespace miles
