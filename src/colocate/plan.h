// The plan: the allocation sequence of a run, run dry. The same constructors, the same handoff and
// the same regions on a device that holds nothing, so that what is planned is what will be taken,
// to the byte.
#pragma once

#include <string>
#include <vector>

#include "colocate/handoff.h"

namespace miles {

struct PlanInput {
  Device& device;  // what the run will use; nothing is taken of it
  const ModelConfig& config;
  const ParamLayout& layout;
  ActorOptions actor;
  EngineOptions engine;
  HandoffOptions handoff;
  bool generates = true;  // whether there is an engine
  bool saves = false;     // whether the run writes checkpoints
  int64_t num_steps_per_rollout = 1;
};

struct MemoryPlan {
  std::vector<HandoffEvent> events;  // of the start and one whole turn; one of an engine alone
  int64_t device_peak = 0;           // bytes
  int64_t host_peak = 0;             // bytes
  TagBytes device_at_peak;           // what the device holds at its peak
  TagBytes host_at_peak;             // the same for the host
  int64_t recomputed_blocks = 0;     // at a step of the largest size: ActorOptions' number, or all
  int64_t blocks = 0;                // of the model, where it trains
  int64_t log_probs_chunk_size = 0;  // rows of logits that the trainer holds at a time

  /// One more event: it may be the peak.
  void add(const HandoffEvent& event);
};

/// Keeps as much of a streamed trainer's state on the device as leaves the plan within
/// `device_bytes`: sets resident_layers and, where a turn has several steps (else they would move
/// as often), resident_states of `input.actor`. But for one copy each way a turn, a byte of weights
/// that stays saves four in each step, one of gradients or states two. Other placements have
/// nothing to choose.
void keep_most_resident(PlanInput& input, int64_t device_bytes);

MemoryPlan plan_memory(const PlanInput& input);

/// The plan that recomputes the fewest blocks, whatever the input's actor says, and takes at most
/// `device_bytes` of the device; where none does, the one that recomputes all.
MemoryPlan plan_fewest_recomputed(PlanInput input, int64_t device_bytes);

}  // namespace miles
