// The gated MLP's nonlinearity. Source: Shazeer 2020 (arXiv:2002.05202), eq. 6: SwiGLU.
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// y = silu(gate) · up,  silu(a) = a / (1 + e^−a). f32 arithmetic; silu is rounded to T, then the
/// product.
struct SwigluArgs {
  Tensor gate_up;  // [N, 2F] T: gate in the first F columns, up in the last
  Tensor y;        // [N, F] T
};
void swiglu(Exec& exec, const SwigluArgs& args);

/// Gives the forward's y once more, to the bit, so that nobody needs to keep it.
struct SwigluBackwardArgs {
  Tensor dy;        // [N, F] T
  Tensor gate_up;   // [N, 2F] T
  Tensor dgate_up;  // [N, 2F] T, overwritten; may be gate_up itself
  Tensor y;         // [N, F] T, overwritten; may be dy itself
};
void swiglu_backward(Exec& exec, const SwigluBackwardArgs& args);

}  // namespace miles
