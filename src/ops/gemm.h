// Matrix products: a linear layer's forward and its two gradients. M rows (tokens), K inputs, N
// outputs; all matrices are row-major and contiguous; N and K are at least 1, and with M = 0
// nothing is done.
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// y = x · wᵀ, accumulated in f32, rounded once.
/// Row-invariant unless exec.row_bits allows otherwise (then a backend may be faster): the bits of
/// y's row i are a function of x's row i and w alone, whatever M, the other rows and the number of
/// threads are. So a token scores the same in a decode batch and in training. Aliases: y overlaps
/// neither x nor w.
struct LinearArgs {
  Tensor x;  // [M, K] T: f32 or bf16
  Tensor w;  // [N, K] T
  Tensor y;  // [M, N] T or f32 (logits)
};
void linear(Exec& exec, const LinearArgs& args);

/// Whether a gradient replaces what its destination holds or is added to it (in f32, rounded once).
enum class Accumulate { no, yes };

/// dx = dy · w, or dx += dy · w.
/// Deterministic: same arguments, same bits, whatever the number of threads. Not row-invariant.
struct LinearBackwardInputArgs {
  Tensor dy;  // [M, N] T: f32 or bf16
  Tensor w;   // [N, K] T
  Tensor dx;  // [M, K] T; overlaps neither dy nor w
  Accumulate accumulate = Accumulate::no;
};
void linear_backward_input(Exec& exec, const LinearBackwardInputArgs& args);

/// dw += dyᵀ · x, or dw = dyᵀ · x. Deterministic in the same sense.
struct LinearBackwardWeightArgs {
  Tensor dy;  // [M, N] T: f32 or bf16
  Tensor x;   // [M, K] T
  Tensor dw;  // [N, K] f32
  Accumulate accumulate = Accumulate::yes;
};
void linear_backward_weight(Exec& exec, const LinearBackwardWeightArgs& args);

}  // namespace miles
