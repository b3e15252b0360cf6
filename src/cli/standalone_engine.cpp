#include "cli/standalone_engine.h"

#include <algorithm>

#include "rl/train_setup.h"

namespace miles {

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
  const Memory memory{*device_, ledger_};
  engine_ = std::make_unique<Engine>(options, model_.config(), layout_, memory, &tokenizer_);
  engine_->onload_weights();
  engine_->onload_kv();
  Region staging(memory, Place::host, "staging",
                 layout_.elements() * size_of(model_.config().dtype));
  staging.commit();
  const Tensor flat = staging.tensor(model_.config().dtype, {layout_.elements()});
  model_.fill(layout_, flat);
  engine_->update_weights(flat, kWeightVersion);
}

}  // namespace miles
