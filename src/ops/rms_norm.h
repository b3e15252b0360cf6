// Root-mean-square normalisation, with the residual addition that always precedes it.
// Source: Zhang & Sennrich 2019, eq. 4 (arXiv:1910.07467).
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// s = x + delta (if given; rounded to T);  r = 1/√(mean_C(s²) + eps);  y = T(s · r) · w, rounded
/// once more, as Hugging Face's LlamaRMSNorm does in low precision (the normalised value is rounded
/// to T first). Aliases: none of x, delta, sum, y may overlap. Row-invariant and deterministic; f32
/// arithmetic.
struct RmsNormArgs {
  Tensor x;         // [N, C] T; becomes s when delta is given and sum is not
  Tensor delta;     // [N, C] T, or empty
  Tensor sum = {};  // [N, C] T: s, with delta; or empty
  Tensor w;         // [C] T
  Tensor y;         // [N, C] T
  Tensor rstd;      // [N] f32: r of each row; or empty
  float eps = 0;    // > 0
};
void rms_norm(Exec& exec, const RmsNormArgs& args);

/// dx = dresidual + ∂y/∂x · dy,  dw += ∂y/∂w · dy, where dresidual is the gradient that reaches x
/// past the norm. dx may be dresidual's memory or x's; nothing else overlaps. Deterministic: dw is
/// summed over rows in a fixed order.
struct RmsNormBackwardArgs {
  Tensor dy;              // [N, C] T
  Tensor x;               // [N, C] T: as the forward left it
  Tensor w;               // [C] T
  Tensor rstd;            // [N] f32
  Tensor dresidual = {};  // [N, C] T; or empty: what dx holds
  Tensor dx;              // [N, C] T (f32 arithmetic, rounded once)
  Tensor dw;              // [C] f32, accumulated
};
void rms_norm_backward(Exec& exec, const RmsNormBackwardArgs& args);

}  // namespace miles
