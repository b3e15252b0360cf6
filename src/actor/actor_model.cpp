#include "actor/actor_model.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"

namespace miles {

ActorModel::ActorModel(const ActorOptions& options, const ModelConfig& config,
                       const ParamLayout& layout, Memory memory)
    : options_(options),
      config_(config),
      layout_(layout),
      memory_(memory),
      copies_(memory.device),
      compute_(memory.device.make_stream(StreamUse::compute)),
      store_(options_, config, layout, memory, copies_),
      buffers_(options_, config, layout, memory, copies_),
      optimizer_(options.optimizer, config, layout, store_) {}

ActorModel::~ActorModel() {
  for (Stream* stream : {compute_.get(), copies_.to_device.get(), copies_.to_host.get()}) try {
      stream->synchronize();
    } catch (const Error& error) {  // the device has failed, and nothing is on its way any more
      log::warn("{}", error.what());
    }
}

Exec ActorModel::exec() {
  return {memory_.device, *compute_, buffers_.workspace()};
}

// --- content ---

void ActorModel::fill_at_rest(const Tensor& at_rest,
                              const std::function<void(const Tensor&)>& fill) {
  if (store_.place() == Place::host) {
    fill(at_rest);
    return;
  }
  Region staging(memory_, Place::host, "staging", at_rest.bytes());
  staging.commit();
  fill(staging.tensor(at_rest.dtype(), at_rest.shape()));
  compute_->copy(at_rest.data(), staging.data(), at_rest.bytes());
  compute_->synchronize();
}

void ActorModel::forget_device_copies() {
  weights_at_rest();
  store_.optimizer().flush();
  for (BlockStore* blocks : {&store_.weights().layers, &store_.weights().ends, &store_.optimizer()})
    blocks->invalidate();
}

void ActorModel::load_weights(const std::function<void(const Tensor& flat)>& fill) {
  forget_device_copies();
  const Tensor weights = store_.at_rest();
  fill_at_rest(weights, fill);
  for (size_t c = 0; c < store_.chunks().size(); ++c)
    compute_->fill_zero(store_.state_at_rest(static_cast<int>(c)),
                        chunk_state(store_.chunks()[c].elements, config_.dtype).bytes);
  if (options_.with_reference)
    compute_->copy(store_.reference_at_rest().data(), weights.data(), weights.bytes());
  compute_->synchronize();
  optimizer_.set_steps(0);
  ++weight_version_;
}

void ActorModel::load_reference(const std::function<void(const Tensor& flat)>& fill) {
  fill_at_rest(store_.reference_at_rest(), fill);
}

Tensor ActorModel::weights_at_rest() {
  compute_->synchronize();
  store_.weights().layers.flush();
  store_.weights().ends.flush();
  return store_.at_rest();
}

Tensor ActorModel::read_weights(const Region& staging, int64_t first, int64_t count) {
  const Tensor part = weights_at_rest().rows(first, count);
  if (store_.place() == Place::host) return part;
  compute_->copy(staging.data(), part.data(), part.bytes());
  compute_->synchronize();
  return staging.tensor(part.dtype(), part.shape());
}

// --- memory ---

void ActorModel::onload() {
  store_.weights().onload();
  if (!store_.streamed()) store_.optimizer().onload();
  // A streamed trainer's first blocks, which the forward needs at once; the others while it runs.
  // More on its way now would hold up whatever gives memory back meanwhile.
  const auto bring = [&](BlockStore& blocks) {
    const int count = store_.streamed() ? std::min(2, blocks.block_count()) : blocks.block_count();
    for (int b = 0; b < count; ++b) blocks.prefetch(b);
  };
  bring(store_.weights().ends);
  bring(store_.weights().layers);
  if (!store_.streamed()) bring(store_.optimizer());
}

void ActorModel::clear_memory() {
  compute_->synchronize();
  buffers_.release();
  store_.gradients().offload();
  store_.release_gradients();
  if (options_.with_reference) store_.reference().offload();  // there only after an exception
}

void ActorModel::offload() {
  clear_memory();
  store_.weights().offload();
  store_.optimizer().offload();
}

void ActorModel::begin_compute() {
  if (!store_.streamed()) store_.commit_gradients();
  store_.gradients().onload();
  buffers_.commit(*compute_);
}

void ActorModel::begin_optimizer() {
  if (!store_.streamed()) return;
  // The forward's and backward's buffers have done their part: the window of states takes their
  // place.
  compute_->synchronize();
  buffers_.release();
  store_.optimizer().onload();
}

void ActorModel::end_optimizer() {
  if (store_.streamed()) store_.optimizer().offload_window();
}

void ActorModel::rehearse_train() {
  begin_compute();
  if (options_.with_reference) {
    store_.reference().onload();
    store_.reference().offload();
  }
  begin_optimizer();
  end_optimizer();
  if (options_.resident_states == 0) return;
  begin_compute();  // of the next step, beside the states that stay
  begin_optimizer();
  end_optimizer();
}

// --- work ---

std::vector<MicroBatch> ActorModel::begin_step(std::span<const TrainSample> samples) {
  int64_t tokens = 0;
  for (const TrainSample& sample : samples) tokens += static_cast<int64_t>(sample.tokens.size());
  MILES_CHECK(static_cast<int64_t>(samples.size()) <= options_.max_sequences_per_step &&
                  tokens <= options_.max_tokens_per_step,
              "{} samples with {} tokens in a step planned for {} and {}", samples.size(), tokens,
              options_.max_sequences_per_step, options_.max_tokens_per_step);
  return pack_micro_batches(samples, options_.max_tokens_per_gpu);
}

std::vector<std::vector<float>> ActorModel::log_probs(Policy policy,
                                                      std::span<const TrainSample> samples,
                                                      float temperature) {
  const std::vector<MicroBatch> micro_batches = begin_step(samples);
  begin_compute();
  const bool reference = policy == Policy::reference;
  if (reference) store_.reference().onload();
  Exec work = exec();
  buffers_.begin_step(work, micro_batches);
  auto result = compute_log_probs({.exec = work,
                                   .config = config_,
                                   .layout = layout_,
                                   .weights = reference ? store_.reference() : store_.weights(),
                                   .buffers = buffers_,
                                   .micro_batches = micro_batches,
                                   .temperature = temperature},
                                  samples);
  if (reference) store_.reference().offload();
  return result;
}

StepResult ActorModel::train_step(std::span<const TrainSample> samples, const LossOptions& loss) {
  StepResult result;
  const std::vector<MicroBatch> micro_batches = begin_step(samples);
  result.micro_batches = static_cast<int>(micro_batches.size());
  result.learning_rate = optimizer_.learning_rate();
  for (const MicroBatch& micro_batch : micro_batches) result.tokens += micro_batch.batch.tokens();

  begin_compute();
  Exec work = exec();
  buffers_.begin_step(work, micro_batches);
  result.kept_blocks = buffers_.kept_blocks();
  const Pass pass{.exec = work,
                  .config = config_,
                  .layout = layout_,
                  .weights = store_.weights(),
                  .buffers = buffers_,
                  .micro_batches = micro_batches,
                  .temperature = loss.temperature};
  forward_layers(pass, Keep::all);
  const BackwardResult backward_result = backward(pass, store_, samples, loss);
  result.loss = backward_result.loss;
  result.grad_norm = backward_result.grad_norm;

  result.skipped = !std::isfinite(result.grad_norm) || result.loss.tokens == 0;
  if (result.skipped) {
    ++skipped_steps_;
    log::warn("optimizer step skipped: {}",
              result.loss.tokens == 0 ? "every token is masked" : "gradients are not finite");
    return result;
  }
  begin_optimizer();
  Exec elementwise{memory_.device, *compute_, {}};  // an optimizer needs no workspace
  optimizer_.step(elementwise, result.grad_norm);
  compute_->synchronize();
  end_optimizer();
  ++weight_version_;
  return result;
}

}  // namespace miles
