// One transformer block, backward, by hand: what its forward computed is kept or recomputed from
// the block's input, then each op's gradient runs in reverse. What it needs is a table
// (LayerGradientBuffers), not a tape.
#pragma once

#include "model/layer.h"
#include "ops/gemm.h"

namespace miles {

/// Room for gradients of what a block computes on the way, N tokens.
struct LayerGradientBuffers {
  Tensor middle;    // [N, H] T: a recomputed block's middle, then the middle's gradient
  Tensor normed;    // [N, H] T: of either norm's output
  Tensor attended;  // [N, Hq, D] T
  Tensor q;         // [N, Hq, D] T
  Tensor k;         // [N, Hkv, D] T
  Tensor v;         // [N, Hkv, D] T
  Tensor qkv;       // [N, (Hq + 2·Hkv)·D] T
};

/// All that a block's forward and backward work in, N tokens.
struct TrainingBuffers {
  LayerBuffers forward;
  PackedKeys keys;
  LayerGradientBuffers gradients;
  /// [bytes] u8: those of them that lie idle while attention's backward runs, which are scratch for
  /// it. They come last in the arena, so whoever places something behind them can lend that too.
  Tensor idle;
};

TrainingBuffers make_training_buffers(const ModelConfig& config, int64_t tokens, Arena& arena);

struct LayerBackwardArgs {
  /// Of all tokens, packed: no rows; the pools take the keys and values once more. Where its buffers
  /// have a middle, their LayerActivations are the forward's (gate_up is overwritten by its
  /// gradient); else the whole forward is recomputed, the same bits.
  LayerContext context;
  const LayerGradientBuffers& buffers;  // for at least the batch's tokens
  const LayerWeights& gradients;        // f32 views, accumulated
  Tensor x_in;                          // [N, H] T: what the forward was given
  Tensor dy;                            // [N, H] T: gradient of the block's output
  Tensor dx;  // [N, H] T: gradient of x_in, written; may be the memory of x_in or dy
  Accumulate matrices = Accumulate::yes;  // no: what matrices' gradients hold is replaced
  /// [bytes] u8: attention_backward's, changes no bit; or empty. May be TrainingBuffers::idle.
  Tensor scratch = {};
};

/// dx = ∂L/∂x_in and gradients += ∂L/∂weights (matrices' may be replaced). Deterministic.
void backward_layer(Exec& exec, const LayerBackwardArgs& args);

}  // namespace miles
