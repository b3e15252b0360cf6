#include "model/layer.h"

#include <cmath>

#include "ops/attention.h"
#include "ops/elementwise.h"
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
  buffers.projected = arena.allocate(dtype, {tokens, config.hidden_size});
  buffers.gate_up = arena.allocate(dtype, {tokens, 2 * config.intermediate_size});
  buffers.activated = arena.allocate(dtype, {tokens, config.intermediate_size});
  buffers.post_normed = buffers.normed;
  if (training) {
    buffers.post_normed = arena.allocate(dtype, {tokens, config.hidden_size});
    buffers.rstd = arena.allocate(DType::f32, {tokens});
    buffers.post_rstd = arena.allocate(DType::f32, {tokens});
    buffers.lse = arena.allocate(DType::f32, {tokens, config.num_attention_heads});
  }
  return buffers;
}

namespace {

/// The first `count` rows, or nothing of nothing.
Tensor first_rows(const Tensor& tensor, int64_t count) {
  return tensor ? tensor.rows(0, count) : Tensor{};
}

}  // namespace

void forward_attention(Exec& exec, const LayerContext& context, Tensor x) {
  const ModelConfig& config = context.config;
  const LayerWeights& weights = context.weights;
  const LayerBuffers& buffers = context.buffers;
  const DeviceBatch& batch = context.batch;
  const int64_t n = x.dim(0);
  const auto eps = static_cast<float>(config.rms_norm_eps);
  const Tensor normed = buffers.normed.rows(0, n);
  const Tensor qkv = buffers.qkv.rows(0, n);
  const Tensor q = buffers.q.rows(0, n);
  const Tensor attended = buffers.attended.rows(0, n);
  const Tensor projected = buffers.projected.rows(0, n);

  rms_norm(exec, {.x = x,
                  .delta = {},
                  .w = weights.input_norm,
                  .y = normed,
                  .rstd = first_rows(buffers.rstd, n),
                  .eps = eps});
  linear(exec, {.x = normed, .w = weights.qkv, .y = qkv});
  qkv_split(exec, {.qkv = qkv,
                   .q_norm = weights.q_norm,
                   .k_norm = weights.k_norm,
                   .positions = batch.positions,
                   .rope = context.rope,
                   .slots = batch.slots,
                   .q = q,
                   .k_pool = context.k_pool,
                   .v_pool = context.v_pool,
                   .eps = eps});
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
  linear(exec, {.x = attended.reshape({n, config.q_size()}), .w = weights.o, .y = projected});
  rms_norm(exec, {.x = x,
                  .delta = projected,
                  .w = weights.post_norm,
                  .y = buffers.post_normed.rows(0, n),
                  .rstd = first_rows(buffers.post_rstd, n),
                  .eps = eps});
}

void forward_mlp_inner(Exec& exec, const LayerContext& context) {
  const int64_t n = context.batch.ids.dim(0);
  const Tensor gate_up = context.buffers.gate_up.rows(0, n);
  linear(exec,
         {.x = context.buffers.post_normed.rows(0, n), .w = context.weights.gate_up, .y = gate_up});
  swiglu(exec, {.gate_up = gate_up, .y = context.buffers.activated.rows(0, n)});
}

void forward_layer(Exec& exec, const LayerContext& context, Tensor x) {
  const int64_t n = x.dim(0);
  forward_attention(exec, context, x);
  forward_mlp_inner(exec, context);
  const Tensor projected = context.buffers.projected.rows(0, n);
  linear(exec,
         {.x = context.buffers.activated.rows(0, n), .w = context.weights.down, .y = projected});
  const Shape flat = {x.elements()};
  add(exec, {.x = x.reshape(flat), .y = projected.reshape(flat)});
}

}  // namespace miles
