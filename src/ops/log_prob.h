// Log-probability and entropy of a categorical distribution given by logits, and their gradient.
// The rollout engine and the trainer call this one op, with the same temperature.
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// z = logits · inverse_temperature[n];  lse = log Σ_v e^z;  log_prob = z[target] − lse;
/// entropy = lse − Σ p·z. f32, one fixed tree over the vocabulary; row-invariant.
/// A logit of −∞ has probability 0 and adds nothing to the entropy. A target that is not in the
/// vocabulary (−1: sample() found no token) has the log-prob NaN.
struct LogProbArgs {
  Tensor logits;               // [N, V] f32
  Tensor targets;              // [N] i32
  Tensor inverse_temperature;  // [N] f32
  Tensor log_prob;             // [N] f32
  Tensor lse;                  // [N] f32, or empty
  Tensor entropy;              // [N] f32, or empty
};
void log_prob(Exec& exec, const LogProbArgs& args);

/// dlogits = inverse_temperature · (d_log_prob·(onehot − p) − d_entropy·p∘(log p + entropy)).
struct LogProbBackwardArgs {
  Tensor logits;               // [N, V] f32
  Tensor targets;              // [N] i32
  Tensor inverse_temperature;  // [N] f32
  Tensor lse;                  // [N] f32: the forward's
  Tensor entropy;              // [N] f32: the forward's
  Tensor d_log_prob;           // [N] f32
  Tensor d_entropy;            // [N] f32
  Tensor dlogits;  // [N, V] T (f32 or bf16), overwritten; may be logits itself when T is f32
};
void log_prob_backward(Exec& exec, const LogProbBackwardArgs& args);

}  // namespace miles
