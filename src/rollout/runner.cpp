#include "rollout/runner.h"

#include <limits>

#include "base/error.h"
#include "model/head.h"
#include "model/rope.h"
#include "ops/embedding.h"
#include "ops/log_prob.h"
#include "ops/sample.h"

namespace miles {
namespace {

/// Replaces banned logits by −∞ until restore(), so that a draw passes over them while log-probs
/// are those of the model. Few and rare: copied one by one.
class BannedLogits {
 public:
  BannedLogits(Stream& stream, const Tensor& logits, const std::vector<Ban>& bans)
      : stream_(stream), logits_(logits), bans_(bans), kept_(bans.size()) {
    static constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < bans.size(); ++i) {
      stream_.copy(&kept_[i], place(bans[i]), sizeof(float));
      stream_.copy(place(bans[i]), &kNever, sizeof(float));
    }
  }

  /// In reverse, so that an id that was banned twice gets its first value back.
  void restore() {
    for (size_t i = bans_.size(); i-- > 0;) stream_.copy(place(bans_[i]), &kept_[i], sizeof(float));
  }

 private:
  float* place(const Ban& ban) const {
    return static_cast<float*>(logits_.data()) + ban.draw * logits_.dim(1) + ban.id;
  }

  Stream& stream_;
  const Tensor& logits_;
  const std::vector<Ban>& bans_;
  std::vector<float> kept_;  // [bans] the values that were there
};

}  // namespace

Runner::Runner(const ModelConfig& config, const ParamLayout& layout, const RunnerLimits& limits,
               Memory memory)
    : config_(config),
      layout_(layout),
      limits_(limits),
      device_(memory.device),
      stream_(memory.device.make_stream(StreamUse::compute)) {
  Arena measure;
  place(measure);
  region_ = Region(memory, Place::device, "rollout.workspace", measure.used());
  Arena arena(region_.data(), region_.bytes());
  buffers_ = place(arena);
}

Runner::Buffers Runner::place(Arena& arena) const {
  const int64_t draws = limits_.sequences, hidden = config_.hidden_size;
  const int64_t uploads =
      batch_bytes(limits_.tokens, limits_.sequences, limits_.pages_per_sequence) +
      batch_bytes(draws, 0, 0);  // three arrays of R: rows and temperatures are two
  Buffers buffers;
  buffers.rope = arena.allocate(DType::f32, {limits_.positions, config_.head_dim});
  buffers.x = arena.allocate(config_.dtype, {limits_.tokens, hidden});
  buffers.layer = make_layer_buffers(config_, limits_.tokens, LayerUse::inference, arena);
  buffers.drawn_x = arena.allocate(config_.dtype, {draws, hidden});
  buffers.normed = arena.allocate(config_.dtype, {draws, hidden});
  buffers.logits = arena.allocate(DType::f32, {draws, config_.vocab_size});
  buffers.tokens = arena.allocate(DType::i32, {draws});
  buffers.log_probs = arena.allocate(DType::f32, {draws});
  buffers.uploads = arena.allocate(DType::u8, {uploads});
  buffers.scratch = arena.allocate(DType::u8, {workspace_bytes(device_.kind())});
  return buffers;
}

void Runner::onload() {
  if (resident()) return;
  region_.commit();
  const std::vector<float> rope = make_rope_table(config_, limits_.positions);
  stream_->copy(buffers_.rope.data(), rope.data(), buffers_.rope.bytes());
  stream_->synchronize();
}

StepOutput Runner::run(const StepBatch& step, const RolloutWeights& weights, const KvCache& cache) {
  MILES_CHECK(step.tokens.tokens() <= limits_.tokens && step.draws() <= limits_.sequences,
              "{} tokens and {} draws, where there is room for {} and {}", step.tokens.tokens(),
              step.draws(), limits_.tokens, limits_.sequences);
  auto* scratch = static_cast<std::byte*>(buffers_.scratch.data());
  Exec exec{.device = device_,
            .stream = *stream_,
            .workspace = {scratch, static_cast<size_t>(buffers_.scratch.bytes())}};
  Arena arena(static_cast<std::byte*>(buffers_.uploads.data()), buffers_.uploads.bytes());
  const DeviceBatch batch = upload(exec, arena, step.tokens);
  const Tensor rows = upload(exec, arena, step.rows);
  const Tensor inverse_temperature = upload(exec, arena, step.inverse_temperature);
  const Tensor x = forward(exec, batch, weights, cache);
  StepOutput output;
  if (step.draws() > 0)
    output = draw(exec, step, logits(exec, x, rows, weights), inverse_temperature);
  stream_->synchronize();
  return output;
}

Tensor Runner::forward(Exec& exec, const DeviceBatch& batch, const RolloutWeights& weights,
                       const KvCache& cache) const {
  const Tensor x = buffers_.x.rows(0, batch.ids.dim(0));
  const Tensor table(weights.group(layout_.embed()), config_.dtype,
                     {config_.vocab_size, config_.hidden_size});
  embedding(exec, {.ids = batch.ids, .table = table, .y = x});
  for (int64_t i = 0; i < layout_.layers(); ++i) {
    const LayerWeights layer = view_layer(config_, layout_.layer_offsets(),
                                          weights.group(layout_.layer(i)), config_.dtype);
    forward_layer(exec,
                  {.config = config_,
                   .weights = layer,
                   .batch = batch,
                   .buffers = buffers_.layer,
                   .rope = buffers_.rope,
                   .k_pool = cache.keys(i),
                   .v_pool = cache.values(i)},
                  x);
  }
  return x;
}

Tensor Runner::logits(Exec& exec, const Tensor& x, const Tensor& rows,
                      const RolloutWeights& weights) const {
  const int64_t draws = rows.dim(0);
  const Tensor drawn_x = buffers_.drawn_x.rows(0, draws);
  const Tensor logits = buffers_.logits.rows(0, draws);
  embedding(exec, {.ids = rows, .table = x, .y = drawn_x});
  head_logits(exec, {.weights = view_head(config_, layout_, weights.group(layout_.embed()),
                                          weights.group(layout_.head()), config_.dtype),
                     .x = drawn_x,
                     .normed = buffers_.normed.rows(0, draws),
                     .rstd = {},
                     .logits = logits,
                     .eps = static_cast<float>(config_.rms_norm_eps)});
  return logits;
}

StepOutput Runner::draw(Exec& exec, const StepBatch& step, const Tensor& logits,
                        const Tensor& inverse_temperature) const {
  const Tensor tokens = buffers_.tokens.rows(0, step.draws());
  const Tensor log_probs = buffers_.log_probs.rows(0, step.draws());
  BannedLogits banned(exec.stream, logits, step.bans);
  sample(exec, {.logits = logits, .rows = step.samples, .tokens = tokens});
  banned.restore();
  // A row without numbers draws −1; what is then read before the row lies in the workspace, and the
  // engine gives up on the token.
  log_prob(exec, {.logits = logits,
                  .targets = tokens,
                  .inverse_temperature = inverse_temperature,
                  .log_prob = log_probs,
                  .lse = {},
                  .entropy = {}});
  StepOutput output;
  output.tokens.resize(static_cast<size_t>(step.draws()));
  output.log_probs.resize(static_cast<size_t>(step.draws()));
  exec.stream.copy(output.tokens.data(), tokens.data(), tokens.bytes());
  exec.stream.copy(output.log_probs.data(), log_probs.data(), log_probs.bytes());
  exec.stream.synchronize();
  return output;
}

}  // namespace miles
