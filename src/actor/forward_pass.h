// The block-major forward: for each layer, its weights come once and every micro-batch passes. So
// the traffic of weights does not depend on how many micro-batches there are.
#pragma once

#include <functional>
#include <vector>

#include "actor/step_buffers.h"
#include "actor/weight_store.h"

namespace miles {

/// What a pass over a step's micro-batches works with.
struct Pass {
  Exec& exec;
  const ModelConfig& config;
  const ParamLayout& layout;
  GroupedWeights& weights;
  StepBuffers& buffers;  // begin_step() has been called for `micro_batches`
  const std::vector<MicroBatch>& micro_batches;
  float temperature = 1;  // logits are divided by it
};

/// Which layers' inputs are kept for a backward, and of the last ones the activations.
enum class Keep { all, none };

/// Where layer l's input lies among the residual blocks: without a backward two of them take turns.
inline int64_t residual_index(int64_t l, Keep keep) {
  return keep == Keep::all ? l : l % 2;
}

/// Throws Interrupted when a signal has come, once the stream is idle: work that is on its way
/// reads host memory of the pass. The state of a pass that was left says nothing.
void leave_if_interrupted(const Pass& pass);

/// Embedding and all layers; the last layer's output is at residual_index(L, keep).
void forward_layers(const Pass& pass, Keep keep);

/// Some of a micro-batch's rows at the head: a run, or a chunk of one (HeadExtent).
struct HeadRows {
  int micro_batch = 0;
  int64_t first = 0;  // into MicroBatch::rows
  int64_t count = 0;  // rows
  int64_t at = 0;     // the first one's place in the run: its row of HeadBuffers
  bool last = false;  // of its run

  /// The run up to and with these.
  HeadRows run() const {
    return {.micro_batch = micro_batch, .first = first - at, .count = at + count, .last = last};
  }
};

/// Logits, log-probs and entropies of a chunk, on the device in HeadBuffers at rows.at. The logits,
/// [count, V] f32, are returned: they are there until the next chunk.
Tensor forward_head(const Pass& pass, const HeadWeights& weights, Tensor x, const HeadRows& rows);

/// Calls `visit` for every chunk of a micro-batch's rows.
void for_head_rows(const Pass& pass, int micro_batch,
                   const std::function<void(const HeadRows&)>& visit);

/// Log-prob of each response token: [samples][response_length], in the samples' order.
std::vector<std::vector<float>> compute_log_probs(const Pass& pass,
                                                  std::span<const TrainSample> samples);

}  // namespace miles
