#include "cli/standalone_engine.h"

#include <algorithm>

#include "base/log.h"
#include "base/units.h"
#include "colocate/plan.h"
#include "rl/train_setup.h"

namespace miles {
namespace {

/// The engine's memory comes, and host memory for the weights on their way to it.
Region commit_all(Engine& engine, const ModelConfig& config, const ParamLayout& layout,
                  Memory memory) {
  engine.onload_weights();
  engine.onload_kv();
  Region staging(memory, Place::host, "staging", layout.elements() * size_of(config.dtype));
  staging.commit();
  return staging;
}

/// The same on a device that holds nothing.
MemoryPlan plan_engine(const EngineOptions& options, const ModelConfig& config,
                       const ParamLayout& layout, Device& device) {
  const auto dry = make_dry_device(device);
  Ledger ledger;
  const Memory memory{*dry, ledger};
  Engine engine(options, config, layout, memory, nullptr);
  const Region staging = commit_all(engine, config, layout, memory);
  MemoryPlan plan;
  plan.trains = false;
  plan.add(
      {.name = "load", .device = ledger.usage(Place::device), .host = ledger.usage(Place::host)});
  return plan;
}

}  // namespace

StandaloneEngine::StandaloneEngine(ModelSource model, const DeviceConfig& device,
                                   const EngineConfig& engine, int64_t max_context_len,
                                   int64_t max_requests, uint64_t seed)
    : model_(std::move(model)),
      layout_(model_.config()),
      tokenizer_(model_.load_tokenizer()),
      device_(make_device(device.device)),
      ledger_(resolve_budget(device, *device_)) {
  const int64_t context = std::min(max_context_len, model_.config().max_position_embeddings);
  EngineConfig few = engine;  // no room for more requests than there are
  if (few.max_running_requests)
    few.max_running_requests = std::min(*few.max_running_requests, max_requests);
  EngineOptions options = resolve_engine(few, device_->kind(), context, max_requests);
  options.seed = seed;
  const MemoryPlan plan = plan_engine(options, model_.config(), layout_, *device_);
  const MemoryBudget budget = resolve_budget(device, *device_);
  log::info("model: {}, {:.2f} M parameters", model_.description(),
            static_cast<double>(layout_.parameters()) / 1e6);
  log::info("device: {}", device_->name());
  log::info("memory plan: device {} of {}, host {} of {}", format_bytes(plan.device_peak),
            format_bytes(budget.device_bytes), format_bytes(plan.host_peak),
            format_bytes(budget.host_bytes));
  check_device_has(plan, *device_);  // first: no budget helps against that
  check_fits(plan, budget);
  const Memory memory{*device_, ledger_};
  engine_ = std::make_unique<Engine>(options, model_.config(), layout_, memory, &tokenizer_);
  const Region staging = commit_all(*engine_, model_.config(), layout_, memory);
  const Tensor flat = staging.tensor(model_.config().dtype, {layout_.elements()});
  model_.fill(layout_, flat);
  engine_->update_weights(flat, kWeightVersion);
}

}  // namespace miles
