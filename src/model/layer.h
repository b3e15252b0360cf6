// One transformer block, forward. Trainer and engine run this very code: it is why their log-probs
// agree to the bit. Source: Touvron et al. 2023 (Llama), Qwen3 technical report (q/k norm).
#pragma once

#include "memory/arena.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/layout.h"
#include "ops/backend.h"

namespace miles {

/// A block's weights, as views of one contiguous piece of memory. T is the model's dtype.
struct LayerWeights {
  Tensor input_norm;  // [H] T
  Tensor qkv;         // [(Hq + 2·Hkv)·D, H] T: q, k and v stacked
  Tensor q_norm;      // [D] T, or empty
  Tensor k_norm;      // [D] T, or empty
  Tensor o;           // [H, Hq·D] T
  Tensor post_norm;   // [H] T
  Tensor gate_up;     // [2F, H] T: gate and up stacked
  Tensor down;        // [H, F] T
};

/// Views of a block at `base`, elements of type `dtype` (the weights' own, or f32 for gradients).
LayerWeights view_layer(const ModelConfig& config, const LayerOffsets& offsets, std::byte* base,
                        DType dtype);

/// Room for what a block computes on the way, N tokens.
struct LayerBuffers {
  Tensor normed;       // [N, H] T: input of the QKV projection
  Tensor rstd;         // [N] f32 of the input norm; training only
  Tensor qkv;          // [N, (Hq + 2·Hkv)·D] T
  Tensor q;            // [N, Hq, D] T
  Tensor attended;     // [N, Hq, D] T
  Tensor lse;          // [N, Hq] f32; training only
  Tensor projected;    // [N, H] T: what is added to the residual stream
  Tensor post_normed;  // [N, H] T: input of the MLP; the same memory as `normed` when not training
  Tensor post_rstd;    // [N] f32; training only
  Tensor gate_up;      // [N, 2F] T
  Tensor activated;    // [N, F] T
  Tensor middle;       // [N, H] T: x between attention and MLP; or empty, and then it replaces x
};

/// What a block's backward needs of its forward and only products and attention can give: with it
/// in memory the backward makes the rest again by passing over it (restore_layer). For a Qwen3 it
/// is three fifths of all that the backward reads. N tokens.
struct LayerActivations {
  Tensor qkv;       // [N, (Hq + 2·Hkv)·D] T
  Tensor attended;  // [N, Hq, D] T
  Tensor lse;       // [N, Hq] f32
  Tensor middle;    // [N, H] T
  Tensor gate_up;   // [N, 2F] T

  static constexpr int kTensors = 5;
};

/// Keys and values of a packed batch: what the trainer has in place of a cache, N tokens.
struct PackedKeys {
  Tensor k;  // [N, Hkv, D] T
  Tensor v;  // [N, Hkv, D] T
};

enum class LayerUse { inference, training };

/// Places the buffers for `tokens` tokens in the arena.
LayerBuffers make_layer_buffers(const ModelConfig& config, int64_t tokens, LayerUse use,
                                Arena& arena);
PackedKeys make_packed_keys(const ModelConfig& config, int64_t tokens, Arena& arena);
LayerActivations make_layer_activations(const ModelConfig& config, int64_t tokens, Arena& arena);
/// `buffers` with the activations in place of its own.
LayerBuffers keeping(LayerBuffers buffers, const LayerActivations& activations);

/// What a forward needs beside the residual stream.
struct LayerContext {
  const ModelConfig& config;
  const LayerWeights& weights;
  const DeviceBatch& batch;
  const LayerBuffers& buffers;  // for at least the batch's tokens
  Tensor rope;                  // [positions, D] f32
  Tensor k_pool;                // [S, Hkv, D] T: this block's keys
  Tensor v_pool;                // [S, Hkv, D] T: this block's values
  // Of the last block, where few tokens are drawn from: what comes after attention is computed for
  // those alone, in their order; with RowBits::invariant the same bits. It costs `buffers.q`.
  Tensor rows = {};    // [R] i32: tokens whose output is wanted; or empty: all
  Tensor rows_x = {};  // [R, H] T, with rows: takes their part of x, which it does not overlap
};

/// The residual stream between two blocks. The norm that comes next adds `delta` on its way, so the
/// sum takes no pass of its own over x; who needs the sum without a norm calls settle().
struct Residual {
  Tensor x;           // [N, H] T
  Tensor delta = {};  // [N, H] T: still to be added to x; or empty. May be `buffers.projected`
};

/// x += delta;  middle = x + attention(norm(x));  keys and values go to the pools. Returns the
/// middle, of context.rows; its normalised form is in `buffers.post_normed`.
Tensor forward_attention(Exec& exec, const LayerContext& context, const Residual& residual);
/// Of that the keys and values alone: x += delta, and they go to the pools.
void forward_keys(Exec& exec, const LayerContext& context, const Residual& residual);
/// From `buffers.post_normed` to `buffers.gate_up`, n tokens.
void forward_gate_up(Exec& exec, const LayerContext& context, int64_t n);
/// The whole block, or context.rows of it. Returns the middle and, in `buffers.projected`, what the
/// block adds to it last. Where `buffers.middle` is kept for a backward, their sum goes elsewhere.
Residual forward_layer(Exec& exec, const LayerContext& context, const Residual& residual);
/// to = x + delta, which is there, with the bits that a norm would have given it. `to` may be x.
void settle(Exec& exec, const Residual& residual, Tensor to);
/// After a forward with the same LayerActivations: norms, q, keys and values once more, to the bit,
/// from those and the block's input x (not changed).
void restore_layer(Exec& exec, const LayerContext& context, Tensor x);

}  // namespace miles
