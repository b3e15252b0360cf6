// The device, what may be used of it, and the sizes of the engine on it, as flags say and where they
// say nothing as suits: what train, generate and eval share.
#pragma once

#include <memory>
#include <vector>

#include "colocate/memory_limits.h"
#include "rl/levers.h"
#include "rl/train_config.h"

namespace miles {

/// The device that was asked for. Throws Error{device} when it is not there.
std::unique_ptr<Device> make_device(DeviceChoice choice);

/// What may be used: as the flags say, else the host's memory and what is free of the device, less
/// what driver and libraries will still take. Throws Error{flags} when the device is the CPU and a
/// flag gives more than the machine has.
MemoryBudget resolve_budget(const DeviceConfig& config, const Device& device);

/// The engine's options as the flags say, the others as suits the device. `max_context_len`:
/// tokens of the longest sample. `requests`: that may come at once. Throws Error{flags} when the
/// KV cache cannot hold one sample.
EngineOptions resolve_engine(const EngineConfig& config, DeviceKind device, int64_t max_context_len,
                             int64_t requests);

/// Budgets that were given: raised to what `plan` needs, and up to what there is.
std::vector<Lever> budget_levers(const DeviceConfig& config, const MemoryPlan& plan,
                                 const Device& device);
/// Sizes of an engine that is as `now`: lowered, the cache to no less than a sample of `model`.
std::vector<Lever> engine_levers(const EngineOptions& now, const ModelConfig& model);

}  // namespace miles
