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
  EngineOptions options;
  options.page_size = engine.page_size;
  options.max_running_requests = std::min(engine.max_running_requests, max_requests);
  options.chunked_prefill_size = engine.chunked_prefill_size;
  options.true_on_policy = engine.true_on_policy;
  options.max_context_len = std::min(max_context_len, model_.config().max_position_embeddings);
  options.seed = seed;
  const int64_t pages = (options.max_context_len + options.page_size - 1) / options.page_size;
  options.max_total_tokens =
      engine.max_total_tokens.value_or(options.max_running_requests * pages * options.page_size);
  check_cache_holds(options.max_total_tokens, options.max_context_len);
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
