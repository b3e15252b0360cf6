// Steps on the device: forward of a batch's tokens, logits of the rows that are drawn from, the
// draws and their log-probs. A step is enqueued and its output taken later, so that the next one
// may already be enqueued meanwhile: what it draws goes on to that one on the device.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "memory/arena.h"
#include "memory/region.h"
#include "model/config.h"
#include "model/layer.h"
#include "model/layout.h"
#include "ops/backend.h"
#include "rollout/kv_cache.h"
#include "rollout/step_batch.h"
#include "rollout/step_graphs.h"
#include "rollout/weights.h"
#include "tensor/tensor.h"

namespace miles {

/// The largest batch.
struct RunnerLimits {
  int64_t tokens = 0;                     // N: in a batch
  int64_t sequences = 0;                  // R: in a batch; also draws
  int64_t pages_per_sequence = 0;         // in a page table
  int64_t positions = 0;                  // longest context, tokens
  RowBits row_bits = RowBits::invariant;  // of its matrix products
};

/// What a step gives, on the host.
struct StepOutput {
  std::vector<int32_t> tokens;   // [R] drawn
  std::vector<float> log_probs;  // [R] of the drawn tokens under the whole distribution
};

/// A step that has been enqueued.
struct EnqueuedStep {
  int64_t number = 0;  // since the runner was made
  int64_t draws = 0;
};

class Runner {
 public:
  /// Takes no memory yet. Tag "rollout.workspace", on the host "staging". `config` and `layout`
  /// must outlive it.
  Runner(const ModelConfig& config, const ParamLayout& layout, const RunnerLimits& limits,
         Memory memory);

  /// Brings memory for the largest batch, and the rotary table into it. No-op when it is there.
  void onload();
  void offload();
  bool resident() const { return region_.committed(); }
  int64_t bytes() const { return region_.bytes(); }

  /// Enqueues the step, whose page copies have been enqueued. Its tokens may be draws of the step
  /// enqueued before it (ops/drawn_ids.h). A third step waits for the first of them.
  EnqueuedStep enqueue(const StepBatch& step, const RolloutWeights& weights, const KvCache& cache);
  /// What the step gave, once it is done: one of the latest two.
  StepOutput output(const EnqueuedStep& step);

  /// The stream that everything runs on: work on it is after every step enqueued so far.
  Stream& stream() { return *stream_; }

 private:
  struct Buffers {
    Tensor rope;  // [positions, D] f32
    Tensor x;     // [N, H] T: the residual stream
    LayerBuffers layer;
    Tensor drawn_from;  // [R, H] T: x of the rows that are drawn from, where they are not all
    Tensor normed;      // [R, H] T
    Tensor logits;      // [R, V] f32
    Tensor drawn;       // [2, R] i32: tokens, then the bits of their log-probs
    Tensor uploads;     // [bytes] u8: the batch and what the draws need
    Tensor scratch;     // [bytes] u8: Exec::workspace
  };
  /// A step's input on the device.
  struct DeviceStep {
    DeviceBatch batch;
    Tensor rows;                 // [R] i32
    Tensor samples;              // [R] SampleRow
    Tensor inverse_temperature;  // [R] f32
  };
  Buffers place(Arena& arena) const;
  /// The stream behind the last block, of the rows that are drawn from. Without any, only keys and
  /// values come of it.
  Residual forward(Exec& exec, const DeviceStep& step, const RolloutWeights& weights,
                   const KvCache& cache) const;
  Tensor logits(Exec& exec, const Residual& drawn_from, const RolloutWeights& weights) const;
  /// What a step sends and gives, on the host.
  struct Staging {
    Tensor uploads;  // as Buffers::uploads
    Tensor drawn;    // as Buffers::drawn
    Event free;      // after the latest step that uses it
  };
  void place_staging(Arena& arena);
  /// Steps take turns.
  Staging& staging_of(int64_t step) { return staging_[static_cast<size_t>(step % 2)]; }
  DeviceStep send(const StepBatch& step, const Staging& staging);
  void compute(Exec& exec, const DeviceStep& step, const std::vector<Ban>& bans,
               const RolloutWeights& weights, const KvCache& cache) const;
  /// [R] i32
  Tensor drawn_tokens() const { return buffers_.drawn.rows(0, 1).reshape({buffers_.drawn.dim(1)}); }
  void draw(Exec& exec, const DeviceStep& step, const std::vector<Ban>& bans,
            const Tensor& logits) const;

  const ModelConfig& config_;
  const ParamLayout& layout_;
  RunnerLimits limits_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  Region region_;
  Region host_region_;
  std::array<Staging, 2> staging_;  // in host_region_
  Buffers buffers_;                 // in region_
  std::vector<float> rope_table_;   // on the host, from the first onload() on
  int64_t steps_ = 0;               // enqueued so far
  StepGraphs graphs_;
};

}  // namespace miles
