// What the trainer is told once.
#pragma once

#include <cstdint>
#include <optional>

#include "actor/lr_schedule.h"

namespace miles {

/// Where the trainer's state is at rest, and how it comes to the device.
enum class ActorPlacement {
  resident,  // at rest on the device, never moves (no --offload-train)
  loaded,    // at rest on the host; all of it on the device while the trainer has its turn
  streamed,  // at rest on the host; block by block through a window, but for those that stay
};

struct OptimizerOptions {
  LrSchedule schedule;  // learning rate per step
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float eps = 1e-8F;
  float weight_decay = 0.01F;  // matrices only
  float clip_grad = 1.0F;      // largest global norm; 0: no clipping
};

struct ActorOptions {
  ActorPlacement placement = ActorPlacement::resident;
  int64_t max_tokens_per_gpu = 0;      // tokens a micro-batch
  int64_t max_tokens_per_step = 0;     // tokens of all samples of one optimizer step
  int64_t max_sequences_per_step = 0;  // samples of one optimizer step
  int64_t max_sequence_length = 0;     // tokens of the longest sample
  int64_t log_probs_chunk_size = 0;    // rows of logits at a time; 0: chosen (HeadExtent)
  /// Blocks that the backward of the largest step recomputes, the first ones; the others keep their
  /// activations. As many as there are, or more: all. A smaller step keeps more in the same memory.
  int64_t recompute_num_layers = INT64_MAX;
  /// When streamed: what stays on the device for the trainer's whole turn. The weights of the first
  /// so many layers, with the gradients of their and earlier chunks (make_chunks); with all layers
  /// all gradients …
  int64_t resident_layers = 0;
  /// … and from the first step on the optimizer's state of the first so many chunks. As many as
  /// there are, or more: all.
  int64_t resident_states = 0;
  bool with_reference = false;  // keep a frozen copy of the first weights
  OptimizerOptions optimizer;
};

}  // namespace miles
