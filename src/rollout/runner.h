// One step on the device: forward of the batch's tokens, logits of the rows that are drawn from,
// the draws and their log-probs.
#pragma once

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

  /// Computes the step, whose page copies have been enqueued. Done when it returns.
  StepOutput run(const StepBatch& step, const RolloutWeights& weights, const KvCache& cache);

  /// The stream that everything runs on.
  Stream& stream() { return *stream_; }

 private:
  struct Buffers {
    Tensor rope;  // [positions, D] f32
    Tensor x;     // [N, H] T: the residual stream
    LayerBuffers layer;
    Residual drawn_from;  // [R, H] T each: the rows that are drawn from, where they are not all
    Tensor normed;        // [R, H] T
    Tensor logits;        // [R, V] f32
    Tensor drawn;         // [2, R] i32: tokens, then the bits of their log-probs
    Tensor uploads;       // [bytes] u8: the batch and what the draws need
    Tensor scratch;       // [bytes] u8: Exec::workspace
  };
  /// A step's input on the device.
  struct DeviceStep {
    DeviceBatch batch;
    Tensor rows;                 // [R] i32
    Tensor samples;              // [R] SampleRow
    Tensor inverse_temperature;  // [R] f32
  };
  Buffers place(Arena& arena) const;
  Residual forward(Exec& exec, const DeviceBatch& batch, const RolloutWeights& weights,
                   const KvCache& cache) const;
  Residual select(Exec& exec, const Residual& residual, const Tensor& rows) const;
  Tensor logits(Exec& exec, const Residual& drawn_from, const RolloutWeights& weights) const;
  DeviceStep send(const StepBatch& step);
  void compute(Exec& exec, const DeviceStep& step, const std::vector<Ban>& bans,
               const RolloutWeights& weights, const KvCache& cache) const;
  void draw(Exec& exec, const DeviceStep& step, const std::vector<Ban>& bans,
            const Tensor& logits) const;
  StepOutput fetch(int64_t draws);

  const ModelConfig& config_;
  const ParamLayout& layout_;
  RunnerLimits limits_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  Region region_;
  Region staging_;   // on the host: what goes to `uploads`, then what comes of `drawn`
  Buffers buffers_;  // in region_
  StepGraphs graphs_;
};

}  // namespace miles
