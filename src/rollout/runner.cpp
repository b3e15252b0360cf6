#include "rollout/runner.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "model/head.h"
#include "model/rope.h"
#include "ops/drawn_ids.h"
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
    if (!bans.empty()) stream_.synchronize();
  }

  /// In reverse, so that an id that was banned twice gets its first value back.
  void restore() {
    for (size_t i = bans_.size(); i-- > 0;) stream_.copy(place(bans_[i]), &kept_[i], sizeof(float));
    if (!bans_.empty()) stream_.synchronize();
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
  Arena host_measure;
  place_staging(host_measure);
  host_region_ = Region(memory, Place::host, "staging", host_measure.used());
  Arena host_arena(host_region_.data(), host_region_.bytes());
  place_staging(host_arena);
}

void Runner::place_staging(Arena& arena) {
  for (Staging& staging : staging_) {
    staging.uploads = arena.allocate(DType::u8, buffers_.uploads.shape());
    staging.drawn = arena.allocate(DType::i32, buffers_.drawn.shape());
  }
}

Runner::Buffers Runner::place(Arena& arena) const {
  const int64_t draws = limits_.sequences, hidden = config_.hidden_size;
  const int64_t uploads =
      batch_bytes(limits_.tokens, limits_.sequences, limits_.pages_per_sequence) +
      batch_bytes(draws, 0, 0) +  // three arrays of R: rows and temperatures are two
      draws * int64_t{sizeof(SampleRow)} + Arena::kAlignment;
  Buffers buffers;
  buffers.rope = arena.allocate(DType::f32, {limits_.positions, config_.head_dim});
  buffers.x = arena.allocate(config_.dtype, {limits_.tokens, hidden});
  buffers.layer = make_layer_buffers(config_, limits_.tokens, LayerUse::inference, arena);
  buffers.drawn_from = arena.allocate(config_.dtype, {draws, hidden});
  buffers.normed = arena.allocate(config_.dtype, {draws, hidden});
  buffers.logits = arena.allocate(DType::f32, {draws, config_.vocab_size});
  buffers.drawn = arena.allocate(DType::i32, {2, draws});
  buffers.uploads = arena.allocate(DType::u8, {uploads});
  buffers.scratch = arena.allocate(DType::u8, {workspace_bytes(device_.kind())});
  return buffers;
}

void Runner::onload() {
  if (resident()) return;
  // Once, and not at each handoff. A dry run needs none.
  if (rope_table_.empty() && device_.runs())
    rope_table_ = make_rope_table(config_, limits_.positions);
  try {
    host_region_.commit();
    region_.commit();
    if (!rope_table_.empty())
      stream_->copy(buffers_.rope.data(), rope_table_.data(), buffers_.rope.bytes());
    stream_->synchronize();
  } catch (...) {  // all of it or nothing
    offload();
    throw;
  }
}

void Runner::offload() {
  region_.release();
  host_region_.release();
}

EnqueuedStep Runner::enqueue(const StepBatch& step, const RolloutWeights& weights,
                             const KvCache& cache) {
  MILES_CHECK(step.tokens.tokens() <= limits_.tokens && step.draws() <= limits_.sequences,
              "{} tokens and {} draws, where there is room for {} and {}", step.tokens.tokens(),
              step.draws(), limits_.tokens, limits_.sequences);
  auto* scratch = static_cast<std::byte*>(buffers_.scratch.data());
  Exec exec{.device = device_,
            .stream = *stream_,
            .workspace = {scratch, static_cast<size_t>(buffers_.scratch.bytes())},
            .row_bits = limits_.row_bits};
  const EnqueuedStep enqueued{.number = steps_++, .draws = step.draws()};
  Staging& staging = staging_of(enqueued.number);
  staging.free.synchronize();
  // Bans are put in place from the host.
  if (stream_->captures() && step.is_decode() && step.bans.empty()) {
    const int64_t sequences = step.tokens.sequences();
    const DecodeShape shape = ladder_shape(
        {sequences, std::ssize(step.tokens.page_table) / sequences, step.tokens.shares()},
        {limits_.sequences, limits_.pages_per_sequence});
    const DeviceStep sent = send(padded_step(step, shape.sequences, shape.pages), staging);
    graphs_.run(*stream_, shape, [&] { compute(exec, sent, {}, weights, cache); });
  } else {
    compute(exec, send(step, staging), step.bans, weights, cache);
  }
  if (enqueued.draws > 0)
    stream_->copy(staging.drawn.data(), buffers_.drawn.data(), buffers_.drawn.bytes());
  staging.free = stream_->record();
  return enqueued;
}

StepOutput Runner::output(const EnqueuedStep& step) {
  MILES_CHECK(step.number < steps_ && step.number >= steps_ - std::ssize(staging_),
              "output of step {}, when {} have been enqueued", step.number, steps_);
  const Staging& staging = staging_of(step.number);
  staging.free.synchronize();
  const auto draws = static_cast<size_t>(step.draws);
  StepOutput output{.tokens = std::vector<int32_t>(draws), .log_probs = std::vector<float>(draws)};
  if (draws == 0) return output;
  const auto* const drawn = static_cast<const std::byte*>(staging.drawn.data());
  std::memcpy(output.tokens.data(), drawn, draws * sizeof(int32_t));
  std::memcpy(output.log_probs.data(), drawn + staging.drawn.bytes() / 2, draws * sizeof(float));
  return output;
}

/// Through pinned memory, in one copy.
Runner::DeviceStep Runner::send(const StepBatch& step, const Staging& staging) {
  auto* const device = static_cast<std::byte*>(buffers_.uploads.data());
  auto* const host = static_cast<std::byte*>(staging.uploads.data());
  Arena arena(device, buffers_.uploads.bytes());
  const auto put = [&](const auto& values) -> Tensor {
    using Value = typename std::remove_cvref_t<decltype(values)>::value_type;
    if (values.empty()) return {};
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(Value));
    const Tensor at = arena.allocate(DType::u8, {bytes});
    std::memcpy(host + (static_cast<std::byte*>(at.data()) - device), values.data(),
                static_cast<size_t>(bytes));
    if constexpr (std::is_same_v<Value, SampleRow>)
      return at;
    else
      return {at.data(), dtype_of<Value>(), {std::ssize(values)}};
  };
  const DeviceStep sent{.batch = to_device(step.tokens, put),
                        .rows = put(step.rows),
                        .samples = put(step.samples),
                        .inverse_temperature = put(step.inverse_temperature)};
  stream_->copy(device, host, arena.used());
  return sent;
}

void Runner::compute(Exec& exec, const DeviceStep& step, const std::vector<Ban>& bans,
                     const RolloutWeights& weights, const KvCache& cache) const {
  fill_drawn_ids(exec, {.ids = step.batch.ids, .drawn = drawn_tokens()});
  const Residual residual = forward(exec, step, weights, cache);
  if (step.rows) draw(exec, step, bans, logits(exec, residual, weights));
}

Residual Runner::forward(Exec& exec, const DeviceStep& step, const RolloutWeights& weights,
                         const KvCache& cache) const {
  const DeviceBatch& batch = step.batch;
  Residual residual{.x = buffers_.x.rows(0, batch.ids.dim(0))};
  const Tensor table(weights.group(layout_.embed()), config_.dtype,
                     {config_.vocab_size, config_.hidden_size});
  embedding(exec, {.ids = batch.ids, .table = table, .y = residual.x});
  for (int64_t i = 0; i < layout_.layers(); ++i) {
    const LayerWeights layer = view_layer(config_, layout_.layer_offsets(),
                                          weights.group(layout_.layer(i)), config_.dtype);
    LayerContext context = {.config = config_,
                            .weights = layer,
                            .batch = batch,
                            .buffers = buffers_.layer,
                            .rope = buffers_.rope,
                            .k_pool = cache.keys(i),
                            .v_pool = cache.values(i)};
    const bool last = i + 1 == layout_.layers();
    if (last && !step.rows) {
      forward_keys(exec, context, residual);
      break;
    }
    // Rows ascend, so as many as there are tokens are all of them.
    if (last && step.rows.dim(0) < batch.ids.dim(0)) {
      context.rows = step.rows;
      context.rows_x = buffers_.drawn_from.rows(0, step.rows.dim(0));
    }
    residual = forward_layer(exec, context, residual);
  }
  return residual;
}

Tensor Runner::logits(Exec& exec, const Residual& drawn_from, const RolloutWeights& weights) const {
  const int64_t draws = drawn_from.x.dim(0);
  const Tensor logits = buffers_.logits.rows(0, draws);
  head_logits(exec, {.weights = view_head(config_, layout_, weights.group(layout_.embed()),
                                          weights.group(layout_.head()), config_.dtype),
                     .x = drawn_from.x,
                     .delta = drawn_from.delta,
                     .normed = buffers_.normed.rows(0, draws),
                     .rstd = {},
                     .logits = logits,
                     .eps = static_cast<float>(config_.rms_norm_eps)});
  return logits;
}

void Runner::draw(Exec& exec, const DeviceStep& step, const std::vector<Ban>& bans,
                  const Tensor& logits) const {
  const int64_t draws = logits.dim(0);
  const Tensor tokens = drawn_tokens().rows(0, draws);
  const Tensor log_probs(
      static_cast<std::byte*>(buffers_.drawn.data()) + buffers_.drawn.bytes() / 2, DType::f32,
      {draws});
  BannedLogits banned(exec.stream, logits, bans);
  sample(exec, {.logits = logits, .rows = step.samples, .tokens = tokens});
  banned.restore();
  // A row without numbers draws −1, whose log-prob is NaN: the engine gives up on it.
  log_prob(exec, {.logits = logits,
                  .targets = tokens,
                  .inverse_temperature = step.inverse_temperature,
                  .log_prob = log_probs,
                  .lse = {},
                  .entropy = {}});
}

}  // namespace miles
