// The trainer: the policy's weights and optimizer, log-probs and updates. What is on the device
// when is decided from outside (colocate/), by onload, clear_memory and offload; all three are
// no-ops when there is nothing to do.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "actor/backward_pass.h"
#include "actor/optimizer.h"

namespace miles {

/// One optimizer step.
struct StepResult {
  LossReport loss;
  double grad_norm = 0;      // before clipping
  double learning_rate = 0;  // of this step
  bool skipped = false;      // gradients were not finite, or no token counted: nothing changed
  int64_t tokens = 0;        // in the step's samples
  int micro_batches = 0;
  int64_t kept_blocks = 0;  // pairs of block and micro-batch whose activations were kept
};

/// Whose log-probs.
enum class Policy { actor, reference };

class ActorModel {
 public:
  /// Takes the memory that is at rest; `config` and `layout` outlive it. Loads nothing.
  ActorModel(const ActorOptions& options, const ModelConfig& config, const ParamLayout& layout,
             Memory memory);
  /// Waits for copies that are on their way: the memory they name goes with it.
  ~ActorModel();
  ActorModel(const ActorModel&) = delete;
  ActorModel& operator=(const ActorModel&) = delete;

  /// Has `fill` write the flat weights (host memory), and starts the optimizer afresh. With a
  /// reference, it becomes a copy of them.
  void load_weights(const std::function<void(const Tensor& flat)>& fill);
  /// Replaces the reference alone.
  void load_reference(const std::function<void(const Tensor& flat)>& fill);

  // --- memory ---
  void onload();        // what a forward needs, and when `loaded` the optimizer's state
  void clear_memory();  // activations, gradients, workspace go
  void offload();       // nothing of the trainer stays on the device, unless placed `resident`
  /// Books and gives back what compute_log_probs and train_step would, and computes nothing.
  void rehearse_train();
  /// The same for save_state.
  void rehearse_save();

  // --- work; onload() first. After a signal (base/interrupt.h) they throw Interrupted: the step
  // that was left has changed no weight ---
  /// [samples][response_length], natural logarithm, at that temperature.
  std::vector<std::vector<float>> log_probs(Policy policy, std::span<const TrainSample> samples,
                                            float temperature);
  StepResult train_step(std::span<const TrainSample> samples, const LossOptions& loss);

  // --- what it knows ---
  /// The newest weights, flat, at rest; valid until the next train_step. Waits for pending copies.
  Tensor weights_at_rest();
  Place rests_at() const { return store_.place(); }
  /// Elements [first, first + count) of the same where the host can read them: at rest, or copied
  /// to `staging`; valid until the next call. At most kReadElements (model/weights_io.h).
  Tensor read_weights(const Region& staging, int64_t first, int64_t count);
  /// Memory for read_weights() and save_state(), tag "staging".
  Region commit_save_staging();
  const HeadExtent& head_extent() const { return buffers_.head_extent(); }
  int64_t weight_version() const { return weight_version_; }  // +1 with every update
  int64_t optimizer_steps() const { return optimizer_.steps(); }
  int64_t skipped_steps() const { return skipped_steps_; }

  /// Weights, optimizer state and counts, as trainer.safetensors in `directory`. Throws
  /// Error{data}.
  void save_state(const std::filesystem::path& directory);
  /// Throws Error{data} when the file is of another model, dtype or format, and nothing has changed
  /// then; or when its bytes are damaged, and what the trainer holds is good for nothing.
  void load_state(const std::filesystem::path& directory);

 private:
  void begin_compute();
  void begin_optimizer();
  void end_optimizer();
  Exec exec();
  std::vector<MicroBatch> begin_step(std::span<const TrainSample> samples);
  /// What is at rest is about to be replaced: nothing on the device may be taken for it.
  void forget_device_copies();
  void fill_at_rest(const Tensor& at_rest, const std::function<void(const Tensor&)>& fill);

  ActorOptions options_;
  const ModelConfig& config_;
  const ParamLayout& layout_;
  Memory memory_;
  CopyStreams copies_;
  std::unique_ptr<Stream> compute_;
  WeightStore store_;
  StepBuffers buffers_;
  Optimizer optimizer_;
  int64_t weight_version_ = 0;
  int64_t skipped_steps_ = 0;
};

}  // namespace miles
