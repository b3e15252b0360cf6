#include "model/layer.h"

#include <cmath>

#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/gemm.h"
#include "ops/qkv_split.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace miles {

LayerWeights view_layer(const ModelConfig& config, const LayerOffsets& offsets, std::byte* base,
                        DType dtype) {
  const auto view = [&](int64_t offset, Shape shape) {
    return offset < 0 ? Tensor{} : Tensor(base + offset * size_of(dtype), dtype, shape);
  };
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  return {
      .input_norm = view(offsets.input_norm, {hidden}),
      .qkv = view(offsets.qkv, {config.qkv_size(), hidden}),
      .q_norm = view(offsets.q_norm, {config.head_dim}),
      .k_norm = view(offsets.k_norm, {config.head_dim}),
      .o = view(offsets.o, {hidden, config.q_size()}),
      .post_norm = view(offsets.post_norm, {hidden}),
      .gate_up = view(offsets.gate_up, {2 * inner, hidden}),
      .down = view(offsets.down, {hidden, inner}),
  };
}

LayerBuffers make_layer_buffers(const ModelConfig& config, int64_t tokens, LayerUse use,
                                Arena& arena) {
  const DType dtype = config.dtype;
  const bool training = use == LayerUse::training;
  LayerBuffers buffers;
  buffers.normed = arena.allocate(dtype, {tokens, config.hidden_size});
  buffers.qkv = arena.allocate(dtype, {tokens, config.qkv_size()});
  buffers.q = arena.allocate(dtype, {tokens, config.num_attention_heads, config.head_dim});
  buffers.attended = arena.allocate(dtype, {tokens, config.num_attention_heads, config.head_dim});
  if (training) {
    buffers.rstd = arena.allocate(DType::f32, {tokens});
    buffers.lse = arena.allocate(DType::f32, {tokens, config.num_attention_heads});
  }
  // What follows attention's backward does not need: TrainingBuffers::idle begins here.
  buffers.projected = arena.allocate(dtype, {tokens, config.hidden_size});
  buffers.post_normed = buffers.normed;
  if (training) {
    buffers.post_normed = arena.allocate(dtype, {tokens, config.hidden_size});
    buffers.post_rstd = arena.allocate(DType::f32, {tokens});
  }
  buffers.gate_up = arena.allocate(dtype, {tokens, 2 * config.intermediate_size});
  buffers.activated = arena.allocate(dtype, {tokens, config.intermediate_size});
  return buffers;
}

PackedKeys make_packed_keys(const ModelConfig& config, int64_t tokens, Arena& arena) {
  const Shape shape = {tokens, config.num_key_value_heads, config.head_dim};
  return {.k = arena.allocate(config.dtype, shape), .v = arena.allocate(config.dtype, shape)};
}

LayerActivations make_layer_activations(const ModelConfig& config, int64_t tokens, Arena& arena) {
  const DType dtype = config.dtype;
  return {
      .qkv = arena.allocate(dtype, {tokens, config.qkv_size()}),
      .attended = arena.allocate(dtype, {tokens, config.num_attention_heads, config.head_dim}),
      .lse = arena.allocate(DType::f32, {tokens, config.num_attention_heads}),
      .middle = arena.allocate(dtype, {tokens, config.hidden_size}),
      .gate_up = arena.allocate(dtype, {tokens, 2 * config.intermediate_size}),
  };
}

LayerBuffers keeping(LayerBuffers buffers, const LayerActivations& activations) {
  buffers.qkv = activations.qkv;
  buffers.attended = activations.attended;
  buffers.lse = activations.lse;
  buffers.middle = activations.middle;
  buffers.gate_up = activations.gate_up;
  return buffers;
}

namespace {

/// The first `count` rows, or nothing of nothing.
Tensor first_rows(const Tensor& tensor, int64_t count) {
  return tensor ? tensor.rows(0, count) : Tensor{};
}

/// x += delta;  normed = norm(x)
void norm_input(Exec& exec, const LayerContext& context, const Residual& residual) {
  const int64_t n = residual.x.dim(0);
  rms_norm(exec, {.x = residual.x,
                  .delta = residual.delta,
                  .w = context.weights.input_norm,
                  .y = context.buffers.normed.rows(0, n),
                  .rstd = first_rows(context.buffers.rstd, n),
                  .eps = static_cast<float>(context.config.rms_norm_eps)});
}

/// From qkv to q and the pools.
void split_heads(Exec& exec, const LayerContext& context) {
  const int64_t n = context.batch.ids.dim(0);
  qkv_split(exec, {.qkv = context.buffers.qkv.rows(0, n),
                   .q_norm = context.weights.q_norm,
                   .k_norm = context.weights.k_norm,
                   .positions = context.batch.positions,
                   .rope = context.rope,
                   .slots = context.batch.slots,
                   .q = context.buffers.q.rows(0, n),
                   .k_pool = context.k_pool,
                   .v_pool = context.v_pool,
                   .eps = static_cast<float>(context.config.rms_norm_eps)});
}

/// middle = x + delta;  post_normed = norm(middle). Returns the middle.
Tensor norm_middle(Exec& exec, const LayerContext& context, const Residual& residual) {
  const int64_t n = residual.x.dim(0);
  const Tensor elsewhere = residual.delta ? first_rows(context.buffers.middle, n) : Tensor{};
  rms_norm(exec, {.x = residual.x,
                  .delta = residual.delta,
                  .sum = elsewhere,
                  .w = context.weights.post_norm,
                  .y = context.buffers.post_normed.rows(0, n),
                  .rstd = first_rows(context.buffers.post_rstd, n),
                  .eps = static_cast<float>(context.config.rms_norm_eps)});
  return elsewhere ? elsewhere : residual.x;
}

}  // namespace

void forward_keys(Exec& exec, const LayerContext& context, const Residual& residual) {
  const int64_t n = residual.x.dim(0);
  norm_input(exec, context, residual);
  linear(exec, {.x = context.buffers.normed.rows(0, n),
                .w = context.weights.qkv,
                .y = context.buffers.qkv.rows(0, n)});
  split_heads(exec, context);
}

Tensor forward_attention(Exec& exec, const LayerContext& context, const Residual& residual) {
  const ModelConfig& config = context.config;
  const LayerBuffers& buffers = context.buffers;
  const DeviceBatch& batch = context.batch;
  const int64_t n = residual.x.dim(0);
  const Tensor q = buffers.q.rows(0, n);

  forward_keys(exec, context, residual);
  Tensor attended = buffers.attended.rows(0, n);
  attention(exec, {.q = q,
                   .k_pool = context.k_pool,
                   .v_pool = context.v_pool,
                   .query_begin = batch.query_begin,
                   .context = batch.context,
                   .page_table = batch.page_table,
                   .kv_begin = batch.kv_begin,
                   .page_size = batch.page_size,
                   .shared_runs = batch.shared_runs,
                   .shared_keys = batch.shared_keys,
                   .scale = 1.0F / std::sqrt(static_cast<float>(config.head_dim)),
                   .out = attended,
                   .lse = first_rows(buffers.lse, n)});
  attended = attended.reshape({n, config.q_size()});
  Residual middle = {.x = residual.x};
  if (context.rows) {
    MILES_CHECK(context.rows_x && context.rows_x.dim(0) == context.rows.dim(0),
                "{} tokens are wanted, and there is no room for so many", context.rows.dim(0));
    const Tensor all = attended;
    attended = q.reshape(all.shape()).rows(0, context.rows.dim(0));
    middle.x = context.rows_x;
    embedding(exec, {.ids = context.rows, .table = all, .y = attended});
    embedding(exec, {.ids = context.rows, .table = residual.x, .y = middle.x});
  }
  middle.delta = buffers.projected.rows(0, attended.dim(0));
  linear(exec, {.x = attended, .w = context.weights.o, .y = middle.delta});
  return norm_middle(exec, context, middle);
}

void forward_gate_up(Exec& exec, const LayerContext& context, int64_t n) {
  linear(exec, {.x = context.buffers.post_normed.rows(0, n),
                .w = context.weights.gate_up,
                .y = context.buffers.gate_up.rows(0, n)});
}

Residual forward_layer(Exec& exec, const LayerContext& context, const Residual& residual) {
  const Tensor middle = forward_attention(exec, context, residual);
  const int64_t n = middle.dim(0);
  forward_gate_up(exec, context, n);
  const Tensor activated = context.buffers.activated.rows(0, n);
  const Tensor projected = context.buffers.projected.rows(0, n);
  swiglu(exec, {.gate_up = context.buffers.gate_up.rows(0, n), .y = activated});
  linear(exec, {.x = activated, .w = context.weights.down, .y = projected});
  return {.x = middle, .delta = projected};
}

void settle(Exec& exec, const Residual& residual, Tensor to) {
  MILES_CHECK(residual.delta, "nothing is to be added to x");
  const Shape flat = {residual.x.elements()};
  add(exec,
      {.x = residual.x.reshape(flat), .y = residual.delta.reshape(flat), .sum = to.reshape(flat)});
}

void restore_layer(Exec& exec, const LayerContext& context, Tensor x) {
  norm_input(exec, context, {.x = x});
  split_heads(exec, context);
  norm_middle(exec, context, {.x = context.buffers.middle.rows(0, x.dim(0))});
}

}  // namespace miles
