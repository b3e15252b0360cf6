#include "cli/standalone_engine.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "colocate/plan.h"
#include "rl/device_setup.h"
#include "rl/sampling.h"

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

/// How an engine's sizes follow from flags.
class Sizes {
 public:
  Sizes(const StandaloneOptions& options, const ModelConfig& model, const ParamLayout& layout,
        Device& device)
      : options_(options), model_(model), layout_(layout), device_(device) {}

  EngineOptions engine(const TrainConfig& config) const {
    EngineConfig flags = config.engine;
    if (flags.max_running_requests)  // no room for more requests than there are
      flags.max_running_requests = std::min(*flags.max_running_requests, options_.requests);
    EngineOptions engine =
        resolve_engine(flags, device_.kind(), max_sample_length(config, model_), options_.requests);
    engine.seed = config.rollout.seed;
    return engine;
  }

  MemoryPlan plan(const TrainConfig& config) const {
    return plan_engine(engine(config), model_, layout_, device_);
  }

  std::optional<Shortage> lack(const TrainConfig& config, const MemoryPlan& plan) const {
    return shortage(plan, resolve_budget(config.device, device_), device_);
  }

  std::string advice(const MemoryPlan& now) const {
    const TrainConfig& config = options_.config;
    std::vector<Lever> levers = budget_levers(config.device, now, device_);
    levers.push_back({.flag = options_.response_len_flag,
                      .values = values_down_to(16, config.rollout.max_response_len),
                      .set = [](TrainConfig& to,
                                int64_t tokens) { return to.rollout.max_response_len = tokens; },
                      .cost = Lever::Cost::task});
    for (Lever& lever : engine_levers(engine(config), model_)) levers.push_back(std::move(lever));
    return what_fits(config, {.levers = std::move(levers), .modes = {}},
                     [&](const TrainConfig& other) { return lack(other, plan(other)); });
  }

 private:
  const StandaloneOptions& options_;
  const ModelConfig& model_;
  const ParamLayout& layout_;
  Device& device_;
};

}  // namespace

StandaloneEngine::StandaloneEngine(ModelSource model, const StandaloneOptions& options)
    : model_(std::move(model)),
      layout_(model_.config()),
      tokenizer_(model_.load_tokenizer()),
      device_(make_device(options.config.device.device)),
      ledger_(resolve_budget(options.config.device, *device_)) {
  const Sizes sizes(options, model_.config(), layout_, *device_);
  const MemoryPlan plan = sizes.plan(options.config);
  if (const auto lack = sizes.lack(options.config, plan))
    fail(ErrorCode::budget, "{}. {}", does_not_fit(*lack), sizes.advice(plan));
  log::info("model: {}, {:.2f} M parameters", model_.description(),
            static_cast<double>(layout_.parameters()) / 1e6);
  log::info("device: {}", device_->name());
  log::info("memory plan: device {} of {}, host {} of {}", format_bytes(plan.device_peak),
            format_bytes(ledger_.budget(Place::device)), format_bytes(plan.host_peak),
            format_bytes(ledger_.budget(Place::host)));
  const Memory memory{*device_, ledger_};
  engine_ = std::make_unique<Engine>(sizes.engine(options.config), model_.config(), layout_, memory,
                                     &tokenizer_);
  const Region staging = commit_all(*engine_, model_.config(), layout_, memory);
  const Tensor flat = staging.tensor(model_.config().dtype, {layout_.elements()});
  model_.fill(layout_, flat);
  engine_->update_weights(flat, kWeightVersion);
}

}  // namespace miles
