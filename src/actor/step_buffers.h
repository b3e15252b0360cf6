// Device memory that lives only while the trainer computes: what actor.clear_memory gives back. One
// function places everything, measuring and for real.
#pragma once

#include <vector>

#include "actor/actor_options.h"
#include "actor/micro_batch.h"
#include "memory/block_store.h"
#include "model/head.h"
#include "model/layer_backward.h"

namespace miles {

/// How many rows pass the head together. The gradient of the whole head is read and written once
/// for each run of R rows, so R wants to be large; of logits, which are f32 and needed only until
/// their gradient is there, C rows at a time are enough.
struct HeadExtent {
  int64_t chunk = 0;  // C: rows of logits at a time
  int64_t run = 0;    // R: rows whose gradients are one product, at least C
};

/// Room for a run of rows at the head.
struct HeadBuffers {
  Tensor logits;               // [C, V] f32; or empty: they lie where dlogits will
  Tensor dlogits;              // [R, V] T
  Tensor x;                    // [R, H] T: rows of the residual stream
  Tensor normed;               // [R, H] T
  Tensor d_normed;             // [R, H] T
  Tensor d_x;                  // [R, H] T
  Tensor d_residual;           // [N, H] T: gradient of a micro-batch's residual stream
  Tensor rstd;                 // [R] f32
  Tensor rows;                 // [R] i32
  Tensor targets;              // [R] i32
  Tensor inverse_temperature;  // [R] f32
  Tensor log_prob;             // [R] f32
  Tensor lse;                  // [R] f32
  Tensor entropy;              // [R] f32
  Tensor d_log_prob;           // [R] f32
  Tensor d_entropy;            // [R] f32
};

class StepBuffers {
 public:
  StepBuffers(const ActorOptions& options, const ModelConfig& config, const ParamLayout& layout,
              Memory memory, CopyStreams& copies);

  /// Brings the memory, and fills the constants in it (the rotary table). No-op when it is there.
  void commit(Stream& stream);
  /// Gives it all back; the compute stream must have passed. No-op when it is gone.
  void release();

  /// Copies the batches to the device, cuts the residual store to them, and gives room for their
  /// activations to as many blocks as it holds, from the last one back. `micro_batches` must stay
  /// until the stream has passed.
  void begin_step(Exec& exec, const std::vector<MicroBatch>& micro_batches);

  /// Micro-batch m's residual stream as layer l's input (l = L: the last one's output).
  [[nodiscard]] BlockStore::Lease residual(int64_t l, int m, Access access, Stream& compute);
  void prefetch_residual(int64_t l, int m);
  int micro_batches() const { return static_cast<int>(batches_.size()); }
  const DeviceBatch& batch(int m) const { return batches_[static_cast<size_t>(m)]; }
  /// Where block l computes micro-batch m when a backward follows: with room of its own for the
  /// activations, which stay, or in what all share, which has no `middle`.
  LayerBuffers layer(int64_t l, int m) const;
  /// Pairs of block and micro-batch whose activations stay in this step.
  int64_t kept_blocks() const { return std::ssize(kept_); }

  /// [C] times the same number, on the host, where it stays: what HeadBuffers'
  /// inverse_temperature is copied from.
  const std::vector<float>& host_inverses(float inverse);

  // Valid while committed.
  /// What all blocks share, in the same memory as what the head works in: no block's activations are
  /// in it while the head is at work.
  const TrainingBuffers& block() const { return block_; }
  Tensor attention_scratch() const { return attention_scratch_; }  // [bytes] u8, for backward_layer
  const HeadBuffers& head() const { return head_; }
  Tensor rope() const { return rope_; }                        // [max_sequence_length, D] f32
  std::byte* layer_accumulator() const { return layer_sum_; }  // f32, one layer's gradient
  std::byte* embed_accumulator() const { return embed_sum_; }  // f32, the embedding's
  std::byte* head_accumulator() const { return head_sum_; }    // f32, the head's
  Tensor norms() const { return norms_; }                      // [chunks] f32: sums of squares
  std::span<std::byte> workspace() const;
  const HeadExtent& head_extent() const { return head_extent_; }

 private:
  void place(Arena& activations, Arena& gradients, Arena& workspace);
  int64_t most_batches() const;  // micro-batches of a step
  int64_t kept_bytes() const;
  void keep_activations(const std::vector<MicroBatch>& micro_batches);

  const ActorOptions& options_;
  const ModelConfig& config_;
  const ParamLayout& layout_;
  DeviceKind device_;
  HeadExtent head_extent_;
  std::vector<float> rope_table_;  // on the host, made once; empty where nothing runs
  std::vector<float> inverses_;    // [C] on the host
  TrainingBuffers block_;
  HeadBuffers head_;
  Tensor attention_scratch_, rope_, norms_, workspace_, uploads_, kept_room_;
  std::byte* layer_sum_ = nullptr;
  std::byte* embed_sum_ = nullptr;
  std::byte* head_sum_ = nullptr;
  Region activations_;    // actor.activations
  Region accumulators_;   // actor.grads: f32 sums
  Region working_;        // actor.workspace
  Region residual_home_;  // store.activations on the host when streamed, else actor.activations
  std::unique_ptr<BlockStore> residuals_;
  std::vector<DeviceBatch> batches_;    // [micro-batches] of this step
  std::vector<LayerActivations> kept_;  // in kept_room_, from the last block's last one back
};

}  // namespace miles
