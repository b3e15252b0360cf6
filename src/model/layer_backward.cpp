#include "model/layer_backward.h"

#include <cmath>

#include "ops/attention.h"
#include "ops/gemm.h"
#include "ops/qkv_split.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace miles {

TrainingBuffers make_training_buffers(const ModelConfig& config, int64_t tokens, Arena& arena) {
  const DType dtype = config.dtype;
  const Shape heads = {tokens, config.num_attention_heads, config.head_dim};
  const Shape kv_heads = {tokens, config.num_key_value_heads, config.head_dim};
  TrainingBuffers buffers;
  LayerGradientBuffers& gradients = buffers.gradients;
  buffers.keys = make_packed_keys(config, tokens, arena);
  gradients.middle = arena.allocate(dtype, {tokens, config.hidden_size});
  gradients.attended = arena.allocate(dtype, heads);
  gradients.q = arena.allocate(dtype, heads);
  gradients.k = arena.allocate(dtype, kv_heads);
  gradients.v = arena.allocate(dtype, kv_heads);
  buffers.forward = make_layer_buffers(config, tokens, LayerUse::training, arena);
  gradients.normed = arena.allocate(dtype, {tokens, config.hidden_size});
  gradients.qkv = arena.allocate(dtype, {tokens, config.qkv_size()});
  buffers.idle = arena.since(buffers.forward.projected);
  return buffers;
}

namespace {

/// From the gradient of the block's output to that of its middle.
void backward_mlp(Exec& exec, const LayerBackwardArgs& args, Tensor x_middle) {
  const LayerContext& context = args.context;
  const int64_t n = args.dy.dim(0);
  const Tensor activated = context.buffers.activated.rows(0, n);
  const Tensor gate_up = context.buffers.gate_up.rows(0, n);
  const Tensor d_normed = args.buffers.normed.rows(0, n);

  // `activated` takes its own gradient first; the nonlinearity turns that into its value.
  linear_backward_input(exec, {.dy = args.dy, .w = context.weights.down, .dx = activated});
  swiglu_backward(exec, {.dy = activated, .gate_up = gate_up, .dgate_up = gate_up, .y = activated});
  linear_backward_weight(
      exec,
      {.dy = args.dy, .x = activated, .dw = args.gradients.down, .accumulate = args.matrices});
  linear_backward_weight(exec, {.dy = gate_up,
                                .x = context.buffers.post_normed.rows(0, n),
                                .dw = args.gradients.gate_up,
                                .accumulate = args.matrices});
  linear_backward_input(exec, {.dy = gate_up, .w = context.weights.gate_up, .dx = d_normed});
  rms_norm_backward(exec, {.dy = d_normed,
                           .x = x_middle,
                           .w = context.weights.post_norm,
                           .rstd = context.buffers.post_rstd.rows(0, n),
                           .dresidual = args.dy,
                           .dx = args.buffers.middle.rows(0, n),
                           .dw = args.gradients.post_norm});
}

/// From the gradient of the block's middle to that of its input.
void backward_attention(Exec& exec, const LayerBackwardArgs& args) {
  const LayerContext& context = args.context;
  const ModelConfig& config = context.config;
  const LayerBuffers& forward = context.buffers;
  const LayerGradientBuffers& buffers = args.buffers;
  const int64_t n = args.dy.dim(0);
  const Tensor d_middle = buffers.middle.rows(0, n);
  const Tensor attended = forward.attended.rows(0, n);
  const Tensor d_attended = buffers.attended.rows(0, n);
  const Tensor dq = buffers.q.rows(0, n), dk = buffers.k.rows(0, n), dv = buffers.v.rows(0, n);
  const Tensor d_qkv = buffers.qkv.rows(0, n);
  const Tensor d_normed = buffers.normed.rows(0, n);

  linear_backward_weight(exec, {.dy = d_middle,
                                .x = attended.reshape({n, config.q_size()}),
                                .dw = args.gradients.o,
                                .accumulate = args.matrices});
  linear_backward_input(
      exec,
      {.dy = d_middle, .w = context.weights.o, .dx = d_attended.reshape({n, config.q_size()})});
  attention_backward(exec, {.q = forward.q.rows(0, n),
                            .k = context.k_pool.rows(0, n),
                            .v = context.v_pool.rows(0, n),
                            .out = attended,
                            .lse = forward.lse.rows(0, n),
                            .dout = d_attended,
                            .query_begin = context.batch.query_begin,
                            .scale = 1.0F / std::sqrt(static_cast<float>(config.head_dim)),
                            .scratch = args.scratch,
                            .longest = context.batch.longest,
                            .dq = dq,
                            .dk = dk,
                            .dv = dv});
  qkv_split_backward(exec, {.dq = dq,
                            .dk = dk,
                            .dv = dv,
                            .qkv = forward.qkv.rows(0, n),
                            .q_norm = context.weights.q_norm,
                            .k_norm = context.weights.k_norm,
                            .positions = context.batch.positions,
                            .rope = context.rope,
                            .dqkv = d_qkv,
                            .dq_norm = args.gradients.q_norm,
                            .dk_norm = args.gradients.k_norm,
                            .eps = static_cast<float>(config.rms_norm_eps)});
  linear_backward_weight(exec, {.dy = d_qkv,
                                .x = forward.normed.rows(0, n),
                                .dw = args.gradients.qkv,
                                .accumulate = args.matrices});
  linear_backward_input(exec, {.dy = d_qkv, .w = context.weights.qkv, .dx = d_normed});
  rms_norm_backward(exec, {.dy = d_normed,
                           .x = args.x_in,
                           .w = context.weights.input_norm,
                           .rstd = forward.rstd.rows(0, n),
                           .dresidual = d_middle,
                           .dx = args.dx,
                           .dw = args.gradients.input_norm});
}

}  // namespace

void backward_layer(Exec& exec, const LayerBackwardArgs& args) {
  LayerBuffers buffers = args.context.buffers;
  const bool kept(buffers.middle);
  if (!kept) buffers.middle = args.buffers.middle;
  const LayerContext forward = {.config = args.context.config,
                                .weights = args.context.weights,
                                .batch = args.context.batch,
                                .buffers = buffers,
                                .rope = args.context.rope,
                                .k_pool = args.context.k_pool,
                                .v_pool = args.context.v_pool};
  if (kept) {
    restore_layer(exec, forward, args.x_in);
  } else {
    forward_attention(exec, forward, {.x = args.x_in});
    forward_gate_up(exec, forward, args.x_in.dim(0));
  }
  backward_mlp(exec, args, buffers.middle.rows(0, args.dy.dim(0)));
  backward_attention(exec, args);
}

}  // namespace miles
