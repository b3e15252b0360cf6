// An engine without a trainer: a model, its tokenizer, and memory for it, for `generate` and
// `eval`.
#pragma once

#include <memory>

#include "memory/ledger.h"
#include "model/source.h"
#include "rl/train_config.h"
#include "rollout/engine.h"

namespace miles {

class StandaloneEngine {
 public:
  static constexpr int64_t kWeightVersion = 1;

  /// Loads the weights, once it is known that everything fits. Throws Error{budget}, Error{device},
  /// Error{flags} or Error{data}. `max_context_len`: prompt and response, tokens, at most the
  /// model's; `max_requests`: how many there will be, so that the KV cache is no larger than they
  /// need.
  StandaloneEngine(ModelSource model, const DeviceConfig& device, const EngineConfig& engine,
                   int64_t max_context_len, int64_t max_requests, uint64_t seed);

  Engine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const ModelConfig& config() const { return model_.config(); }

 private:
  ModelSource model_;
  ParamLayout layout_;
  Tokenizer tokenizer_;
  std::unique_ptr<Device> device_;
  Ledger ledger_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace miles
