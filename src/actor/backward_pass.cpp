#include "actor/backward_pass.h"

#include <cmath>

#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/gemm.h"
#include "ops/log_prob.h"
#include "ops/rms_norm.h"

namespace miles {
namespace {

class Backward {
 public:
  Backward(const Pass& pass, WeightStore& store, std::span<const TrainSample> samples,
           const LossOptions& options)
      : pass_(pass),
        store_(store),
        samples_(samples),
        options_(options),
        weights_(token_weights(samples, options)),
        host_(static_cast<size_t>(pass.buffers.head_extent().chunk)) {}

  BackwardResult run() {
    const int layers = static_cast<int>(pass_.layout.layers());
    std::byte* const embed = pass_.buffers.embed_accumulator();
    std::byte* const head = pass_.buffers.head_accumulator();
    zero_around_matrices(pass_.layout.head(), head);
    if (pass_.config.tie_word_embeddings)
      zero_around_matrices(pass_.layout.embed(), embed);
    else
      stream().fill_zero(embed, pass_.layout.embed().elements * size_of(DType::f32));
    backward_heads();
    emit(layers, pass_.buffers.head_accumulator());
    for (int l = layers - 1; l >= 0; --l) backward_layers(l);
    backward_embedding();
    emit(-1, pass_.buffers.embed_accumulator());
    return {report_, gradient_norm()};
  }

 private:
  /// What a chunk of rows brings to the host and back.
  struct HostRows {
    explicit HostRows(size_t rows)
        : log_prob(rows), entropy(rows), d_log_prob(rows), d_entropy(rows) {}
    std::vector<float> log_prob, entropy, d_log_prob, d_entropy;
  };

  Stream& stream() const { return pass_.exec.stream; }
  /// Zeroes what is no matrix: norms, which accumulate, and padding. A matrix's first product
  /// replaces what the accumulator held, which saves zeroing and reading it.
  void zero_around_matrices(const Group& group, std::byte* sums) {
    const auto& params = pass_.layout.params();
    for (int64_t i = 0; i < group.param_count; ++i) {
      const ParamSpec& param = params[static_cast<size_t>(group.first_param + i)];
      const int64_t end = i + 1 < group.param_count
                              ? params[static_cast<size_t>(group.first_param + i + 1)].offset
                              : group.offset + group.elements;
      const int64_t begin = param.offset + (param.shape.rank() == 2 ? param.elements() : 0);
      stream().fill_zero(sums + (begin - group.offset) * size_of(DType::f32),
                         (end - begin) * size_of(DType::f32));
    }
  }
  Tensor view(const BlockStore::Lease& lease, int m) const {
    const int64_t tokens = pass_.micro_batches[static_cast<size_t>(m)].batch.tokens();
    return {lease.data(), pass_.config.dtype, {tokens, pass_.config.hidden_size}};
  }

  void backward_heads() {
    const auto embed = pass_.weights.ends.acquire(GroupedWeights::kEmbed, Access::read, stream());
    const auto head = pass_.weights.ends.acquire(GroupedWeights::kHead, Access::read, stream());
    const DType dtype = pass_.config.dtype;
    const HeadWeights weights =
        view_head(pass_.config, pass_.layout, embed.data(), head.data(), dtype);
    const HeadWeights sums =
        view_head(pass_.config, pass_.layout, pass_.buffers.embed_accumulator(),
                  pass_.buffers.head_accumulator(), DType::f32);
    for (int m = 0; m < pass_.buffers.micro_batches(); ++m) {
      const auto lease = pass_.buffers.residual(pass_.layout.layers(), m, Access::update, stream());
      pass_.buffers.prefetch_residual(pass_.layout.layers(), m + 1);
      const Tensor x = view(lease, m);
      const Tensor dx = pass_.buffers.head().d_residual.rows(0, x.dim(0));
      stream().fill_zero(dx.data(), dx.bytes());
      for_head_rows(pass_, m, [&](const HeadRows& rows) {
        const Tensor logits = forward_head(pass_, weights, x, rows);
        token_losses(rows);
        backward_log_prob(rows, logits);
        if (rows.last) backward_head(weights, sums, rows.run(), dx);
      });
      stream().copy(x.data(), dx.data(), dx.bytes());
    }
    if (head_product_ == Accumulate::no)  // no row had a token to learn from
      stream().fill_zero(sums.lm_head.data(), sums.lm_head.bytes());
  }

  /// Reads log-probs and entropies, works out each token's loss, sends the derivatives back.
  void token_losses(const HeadRows& rows) {
    const HeadBuffers& head = pass_.buffers.head();
    const int64_t bytes = rows.count * size_of(DType::f32);
    const auto device = [&](const Tensor& column) {
      return column.rows(rows.at, rows.count).data();
    };
    stream().copy(host_.log_prob.data(), device(head.log_prob), bytes);
    stream().copy(host_.entropy.data(), device(head.entropy), bytes);
    stream().synchronize();
    const MicroBatch& micro_batch = pass_.micro_batches[static_cast<size_t>(rows.micro_batch)];
    for (int64_t i = 0; i < rows.count; ++i) {
      const auto at = static_cast<size_t>(i);
      const RowOrigin origin = micro_batch.origins[static_cast<size_t>(rows.first + i)];
      const auto position = static_cast<size_t>(origin.position);
      const TrainSample& sample = samples_[static_cast<size_t>(origin.sample)];
      host_.d_log_prob[at] = host_.d_entropy[at] = 0;
      if (sample.loss_mask[position] == 0) continue;
      TokenInput input{.log_prob = host_.log_prob[at], .entropy = host_.entropy[at]};
      TokenLoss token;
      if (options_.type == LossType::sft_loss) {
        token = sft_token_loss(input);
      } else {
        input.old_log_prob = sample.old_log_probs[position];
        input.advantage = sample.advantages[position];
        if (!sample.ref_log_probs.empty()) input.ref_log_prob = sample.ref_log_probs[position];
        token = policy_token_loss(input, options_.policy);
      }
      const float weight = weights_[static_cast<size_t>(origin.sample)];
      report_.add(token, weight);
      host_.d_log_prob[at] = weight * token.d_log_prob;
      host_.d_entropy[at] = weight * token.d_entropy;
    }
    stream().copy(device(head.d_log_prob), host_.d_log_prob.data(), bytes);
    stream().copy(device(head.d_entropy), host_.d_entropy.data(), bytes);
  }

  void backward_log_prob(const HeadRows& rows, Tensor logits) {
    const HeadBuffers& head = pass_.buffers.head();
    const int64_t at = rows.at, n = rows.count;
    log_prob_backward(pass_.exec, {.logits = logits,
                                   .targets = head.targets.rows(at, n),
                                   .inverse_temperature = head.inverse_temperature.rows(at, n),
                                   .lse = head.lse.rows(at, n),
                                   .entropy = head.entropy.rows(at, n),
                                   .d_log_prob = head.d_log_prob.rows(at, n),
                                   .d_entropy = head.d_entropy.rows(at, n),
                                   .dlogits = head.dlogits.rows(at, n)});
  }

  /// A run's share of the head's gradients, and of the residual stream's.
  void backward_head(const HeadWeights& weights, const HeadWeights& sums, const HeadRows& rows,
                     Tensor dx) {
    const HeadBuffers& head = pass_.buffers.head();
    const int64_t n = rows.count;
    const Tensor dlogits = head.dlogits.rows(0, n), d_normed = head.d_normed.rows(0, n);
    const Tensor d_rows = head.d_x.rows(0, n);
    linear_backward_weight(pass_.exec, {.dy = dlogits,
                                        .x = head.normed.rows(0, n),
                                        .dw = sums.lm_head,
                                        .accumulate = head_product_});
    head_product_ = Accumulate::yes;
    linear_backward_input(pass_.exec, {.dy = dlogits, .w = weights.lm_head, .dx = d_normed});
    stream().fill_zero(d_rows.data(), d_rows.bytes());
    rms_norm_backward(pass_.exec, {.dy = d_normed,
                                   .x = head.x.rows(0, n),
                                   .w = weights.norm,
                                   .rstd = head.rstd.rows(0, n),
                                   .dx = d_rows,
                                   .dw = sums.norm});
    scatter_rows(pass_.exec, {.ids = head.rows.rows(0, n), .y = d_rows, .table = dx});
  }

  void backward_layers(int l) {
    zero_around_matrices(pass_.layout.layer(l), pass_.buffers.layer_accumulator());
    {
      const auto lease = pass_.weights.layers.acquire(l, Access::read, stream());
      pass_.weights.layers.prefetch(l - 1);
      const LayerOffsets& offsets = pass_.layout.layer_offsets();
      const LayerWeights weights =
          view_layer(pass_.config, offsets, lease.data(), pass_.config.dtype);
      const LayerWeights gradients =
          view_layer(pass_.config, offsets, pass_.buffers.layer_accumulator(), DType::f32);
      const TrainingBuffers& block = pass_.buffers.block();
      for (int m = 0; m < pass_.buffers.micro_batches(); ++m) {
        leave_if_interrupted(pass_);
        const auto above = pass_.buffers.residual(l + 1, m, Access::read, stream());
        const auto here = pass_.buffers.residual(l, m, Access::update, stream());
        pass_.buffers.prefetch_residual(l, m + 1);
        const Tensor x = view(here, m);
        const LayerBuffers buffers = pass_.buffers.layer(l, m);
        backward_layer(pass_.exec, {.context = {.config = pass_.config,
                                                .weights = weights,
                                                .batch = pass_.buffers.batch(m),
                                                .buffers = buffers,
                                                .rope = pass_.buffers.rope(),
                                                .k_pool = block.keys.k,
                                                .v_pool = block.keys.v},
                                    .buffers = block.gradients,
                                    .gradients = gradients,
                                    .x_in = x,
                                    .dy = view(above, m),
                                    .dx = x,
                                    .matrices = m == 0 ? Accumulate::no : Accumulate::yes,
                                    .scratch = pass_.buffers.attention_scratch()});
      }
    }
    emit(l, pass_.buffers.layer_accumulator());
  }

  void backward_embedding() {
    const Tensor sums(pass_.buffers.embed_accumulator(), DType::f32,
                      {pass_.config.vocab_size, pass_.config.hidden_size});
    for (int m = 0; m < pass_.buffers.micro_batches(); ++m) {
      const auto lease = pass_.buffers.residual(0, m, Access::read, stream());
      embedding_backward(pass_.exec,
                         {.ids = pass_.buffers.batch(m).ids, .dy = view(lease, m), .dtable = sums});
    }
  }

  /// A group's sums, rounded to the weights' dtype, go to the gradient store; their squares are
  /// added up.
  void emit(int group, std::byte* sums) {
    const auto [first, last] = store_.chunks_of(group);
    for (int c = first; c < last; ++c) {
      const Chunk& chunk = store_.chunks()[static_cast<size_t>(c)];
      const auto lease = store_.gradients().acquire(c, Access::overwrite, stream());
      const Tensor gradient(lease.data(), pass_.config.dtype, {chunk.elements});
      cast(pass_.exec, {.from = Tensor(sums + chunk.group_offset * size_of(DType::f32), DType::f32,
                                       {chunk.elements}),
                        .to = gradient,
                        .squares = pass_.buffers.norms().rows(c, 1)});
    }
  }

  double gradient_norm() const {
    std::vector<float> squares(store_.chunks().size());
    stream().copy(squares.data(), pass_.buffers.norms().data(),
                  static_cast<int64_t>(squares.size()) * size_of(DType::f32));
    stream().synchronize();
    double sum = 0;
    for (const float square : squares) sum += square;
    return std::sqrt(sum);
  }

  const Pass& pass_;
  WeightStore& store_;
  std::span<const TrainSample> samples_;
  const LossOptions& options_;
  std::vector<float> weights_;  // [samples] of one counting token
  HostRows host_;
  LossReport report_;
  Accumulate head_product_ = Accumulate::no;  // of the next one: the first replaces
};

}  // namespace

BackwardResult backward(const Pass& pass, WeightStore& store, std::span<const TrainSample> samples,
                        const LossOptions& options) {
  return Backward(pass, store, samples, options).run();
}

}  // namespace miles
