// An engine without a trainer: a model, its tokenizer, and memory for it, for `generate` and
// `eval`.
#pragma once

#include <memory>

#include "memory/ledger.h"
#include "model/source.h"
#include "rl/train_config.h"
#include "rollout/engine.h"

namespace miles {

struct StandaloneOptions {
  /// Of which count device, engine, lengths (rollout.max_prompt_len and max_response_len) and seed.
  const TrainConfig& config;
  int64_t requests = 0;           // that there will be: the KV cache is no larger than they need
  const char* response_len_flag;  // what max_response_len is called: "--max-new-tokens"
};

class StandaloneEngine {
 public:
  static constexpr int64_t kWeightVersion = 1;

  /// Loads the weights, once it is known that everything fits. Throws Error{budget}, Error{device},
  /// Error{flags} or Error{data}.
  StandaloneEngine(ModelSource model, const StandaloneOptions& options);

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
