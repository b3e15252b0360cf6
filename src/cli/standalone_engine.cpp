#include "cli/standalone_engine.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "colocate/plan.h"
#include "rl/device_setup.h"

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
  plan.add(
      {.name = "load", .device = ledger.usage(Place::device), .host = ledger.usage(Place::host)});
  return plan;
}

EngineOptions engine_options(const StandaloneOptions& options, const ModelConfig& model,
                             DeviceKind device) {
  EngineConfig config = options.engine;
  if (config.max_running_requests)  // no room for more requests than there are
    config.max_running_requests = std::min(*config.max_running_requests, options.max_requests);
  EngineOptions engine = resolve_engine(
      config, device, std::min(options.max_context_len, model.max_position_embeddings),
      options.max_requests);
  engine.seed = options.seed;
  return engine;
}

/// The plan of those options. Throws Error{budget} that says what is lacking and with which flags
/// they would fit.
MemoryPlan plan_that_fits(const StandaloneOptions& options, const ModelConfig& config,
                          const ParamLayout& layout, Device& device) {
  const auto plan_of = [&](const StandaloneOptions& other) {
    return plan_engine(engine_options(other, config, device.kind()), config, layout, device);
  };
  const auto lack_of = [&](const StandaloneOptions& other, const MemoryPlan& plan) {
    return shortage(plan, resolve_budget(other.device, device), device);
  };
  MemoryPlan plan = plan_of(options);
  const std::optional<Shortage> lack = lack_of(options, plan);
  if (!lack) return plan;
  TrainConfig flags;  // whose these are a part
  flags.device = options.device;
  flags.engine = options.engine;
  std::vector<Lever> levers = budget_levers(options.device, plan, device);
  for (Lever& lever : engine_levers(engine_options(options, config, device.kind())))
    levers.push_back(std::move(lever));
  fail(ErrorCode::budget, "does not fit: {}. {}", lack->text,
       what_fits(flags, levers, [&](const TrainConfig& other) {
         StandaloneOptions moved = options;
         moved.device = other.device;
         moved.engine = other.engine;
         const std::optional<Shortage> still = lack_of(moved, plan_of(moved));
         return still ? std::optional(still->text) : std::nullopt;
       }));
}

}  // namespace

StandaloneEngine::StandaloneEngine(ModelSource model, const StandaloneOptions& options)
    : model_(std::move(model)),
      layout_(model_.config()),
      tokenizer_(model_.load_tokenizer()),
      device_(make_device(options.device.device)),
      ledger_(resolve_budget(options.device, *device_)) {
  const MemoryPlan plan = plan_that_fits(options, model_.config(), layout_, *device_);
  log::info("model: {}, {:.2f} M parameters", model_.description(),
            static_cast<double>(layout_.parameters()) / 1e6);
  log::info("device: {}", device_->name());
  log::info("memory plan: device {} of {}, host {} of {}", format_bytes(plan.device_peak),
            format_bytes(ledger_.budget(Place::device)), format_bytes(plan.host_peak),
            format_bytes(ledger_.budget(Place::host)));
  const Memory memory{*device_, ledger_};
  engine_ = std::make_unique<Engine>(engine_options(options, model_.config(), device_->kind()),
                                     model_.config(), layout_, memory, &tokenizer_);
  const Region staging = commit_all(*engine_, model_.config(), layout_, memory);
  const Tensor flat = staging.tensor(model_.config().dtype, {layout_.elements()});
  model_.fill(layout_, flat);
  engine_->update_weights(flat, kWeightVersion);
}

}  // namespace miles
