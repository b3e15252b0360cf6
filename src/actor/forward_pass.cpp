#include "actor/forward_pass.h"

#include <algorithm>

#include "base/interrupt.h"
#include "ops/embedding.h"
#include "ops/log_prob.h"

namespace miles {
namespace {

Tensor residual_view(const Pass& pass, const BlockStore::Lease& lease, int m) {
  const int64_t tokens = pass.micro_batches[static_cast<size_t>(m)].batch.tokens();
  return {lease.data(), pass.config.dtype, {tokens, pass.config.hidden_size}};
}

void embed(const Pass& pass) {
  const auto weights =
      pass.weights.ends.acquire(GroupedWeights::kEmbed, Access::read, pass.exec.stream);
  const Tensor table(weights.data(), pass.config.dtype,
                     {pass.config.vocab_size, pass.config.hidden_size});
  for (int m = 0; m < pass.buffers.micro_batches(); ++m) {
    const auto x = pass.buffers.residual(0, m, Access::overwrite, pass.exec.stream);
    embedding(pass.exec,
              {.ids = pass.buffers.batch(m).ids, .table = table, .y = residual_view(pass, x, m)});
  }
}

void forward_layer_m(const Pass& pass, const LayerWeights& weights, int64_t l, int m, Keep keep) {
  const int64_t from = residual_index(l, keep), to = residual_index(l + 1, keep);
  const auto input = pass.buffers.residual(from, m, Access::read, pass.exec.stream);
  const auto output = pass.buffers.residual(to, m, Access::overwrite, pass.exec.stream);
  pass.buffers.prefetch_residual(from, m + 1);
  const Tensor x = residual_view(pass, output, m);
  const TrainingBuffers& block = pass.buffers.block();
  LayerBuffers buffers = keep == Keep::all ? pass.buffers.layer(l, m) : block.forward;
  if (!buffers.middle) buffers.middle = x;  // where nobody keeps it, it becomes the output in place
  // Another micro-batch uses the layer's buffers next, and the output may leave the device: whole.
  settle(pass.exec,
         forward_layer(pass.exec,
                       {.config = pass.config,
                        .weights = weights,
                        .batch = pass.buffers.batch(m),
                        .buffers = buffers,
                        .rope = pass.buffers.rope(),
                        .k_pool = block.keys.k,
                        .v_pool = block.keys.v},
                       {.x = residual_view(pass, input, m)}),
         x);
}

}  // namespace

void leave_if_interrupted(const Pass& pass) {
  if (interrupted() == 0) return;
  pass.exec.stream.synchronize();
  stop_if_interrupted();
}

void forward_layers(const Pass& pass, Keep keep) {
  embed(pass);
  for (int64_t l = 0; l < pass.layout.layers(); ++l) {
    const auto lease =
        pass.weights.layers.acquire(static_cast<int>(l), Access::read, pass.exec.stream);
    pass.weights.layers.prefetch(static_cast<int>(l) + 1);
    const LayerWeights weights =
        view_layer(pass.config, pass.layout.layer_offsets(), lease.data(), pass.config.dtype);
    for (int m = 0; m < pass.buffers.micro_batches(); ++m) {
      leave_if_interrupted(pass);
      forward_layer_m(pass, weights, l, m, keep);
    }
  }
}

void for_head_rows(const Pass& pass, int micro_batch,
                   const std::function<void(const HeadRows&)>& visit) {
  const auto rows =
      static_cast<int64_t>(pass.micro_batches[static_cast<size_t>(micro_batch)].rows.size());
  const auto [chunk, run] = pass.buffers.head_extent();
  for (int64_t first = 0, count = 0; first < rows; first += count) {
    leave_if_interrupted(pass);
    const int64_t at = first % run;
    count = std::min({chunk, run - at, rows - first});
    visit({.micro_batch = micro_batch,
           .first = first,
           .count = count,
           .at = at,
           .last = at + count == run || first + count == rows});
  }
}

Tensor forward_head(const Pass& pass, const HeadWeights& weights, Tensor x, const HeadRows& rows) {
  const MicroBatch& micro_batch = pass.micro_batches[static_cast<size_t>(rows.micro_batch)];
  const HeadBuffers& head = pass.buffers.head();
  const int64_t at = rows.at, n = rows.count;
  const Tensor indices = head.rows.rows(at, n), targets = head.targets.rows(at, n);
  const Tensor inverse = head.inverse_temperature.rows(at, n);
  const std::vector<float>& inverses = pass.buffers.host_inverses(1.0F / pass.temperature);
  pass.exec.stream.copy(indices.data(), micro_batch.rows.data() + rows.first, indices.bytes());
  pass.exec.stream.copy(targets.data(), micro_batch.targets.data() + rows.first, targets.bytes());
  pass.exec.stream.copy(inverse.data(), inverses.data(), inverse.bytes());

  const Tensor gathered = head.x.rows(at, n);
  const Tensor logits = head.logits ? head.logits.rows(0, n) : head.dlogits.rows(at, n);
  embedding(pass.exec, {.ids = indices, .table = x, .y = gathered});
  head_logits(pass.exec, {.weights = weights,
                          .x = gathered,
                          .delta = {},
                          .normed = head.normed.rows(at, n),
                          .rstd = head.rstd.rows(at, n),
                          .logits = logits,
                          .eps = static_cast<float>(pass.config.rms_norm_eps)});
  log_prob(pass.exec, {.logits = logits,
                       .targets = targets,
                       .inverse_temperature = inverse,
                       .log_prob = head.log_prob.rows(at, n),
                       .lse = head.lse.rows(at, n),
                       .entropy = head.entropy.rows(at, n)});
  return logits;
}

std::vector<std::vector<float>> compute_log_probs(const Pass& pass,
                                                  std::span<const TrainSample> samples) {
  std::vector<std::vector<float>> result;
  for (const TrainSample& sample : samples)
    result.emplace_back(static_cast<size_t>(sample.response_length));

  forward_layers(pass, Keep::none);
  Stream& stream = pass.exec.stream;
  const auto embed = pass.weights.ends.acquire(GroupedWeights::kEmbed, Access::read, stream);
  const auto head = pass.weights.ends.acquire(GroupedWeights::kHead, Access::read, stream);
  const HeadWeights weights =
      view_head(pass.config, pass.layout, embed.data(), head.data(), pass.config.dtype);
  std::vector<float> log_probs(static_cast<size_t>(pass.buffers.head_extent().run));
  for (int m = 0; m < pass.buffers.micro_batches(); ++m) {
    const auto lease = pass.buffers.residual(residual_index(pass.layout.layers(), Keep::none), m,
                                             Access::read, stream);
    const Tensor x = residual_view(pass, lease, m);
    for_head_rows(pass, m, [&](const HeadRows& chunk) {
      forward_head(pass, weights, x, chunk);
      if (!chunk.last) return;
      const HeadRows rows = chunk.run();
      stream.copy(log_probs.data(), pass.buffers.head().log_prob.data(),
                  rows.count * size_of(DType::f32));
      stream.synchronize();
      for (int64_t i = 0; i < rows.count; ++i) {
        const RowOrigin origin =
            pass.micro_batches[static_cast<size_t>(m)].origins[static_cast<size_t>(rows.first + i)];
        result[static_cast<size_t>(origin.sample)][static_cast<size_t>(origin.position)] =
            log_probs[static_cast<size_t>(i)];
      }
    });
  }
  return result;
}

}  // namespace miles
