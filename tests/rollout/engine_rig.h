// A small random model and an engine on it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "memory/ledger.h"
#include "model/layout.h"
#include "model/weights_io.h"
#include "rollout/engine.h"
#include "tests/support/small_model.h"
#include "tests/support/test_device.h"
#include "text/tokenizer.h"

namespace miles::test {

/// Weights at rest.
class SmallModel {
 public:
  explicit SmallModel(ModelConfig model_config, uint64_t seed = 1)
      : config(std::move(model_config)),
        layout(config),
        bytes_(static_cast<size_t>(layout.elements() * size_of(config.dtype))),
        flat(bytes_.data(), config.dtype, {layout.elements()}) {
    init_random_weights(config, layout, seed, flat);
  }
  explicit SmallModel(DType dtype, uint64_t seed = 1) : SmallModel(small_config(dtype), seed) {}
  SmallModel(const SmallModel&) = delete;
  SmallModel& operator=(const SmallModel&) = delete;

  ModelConfig config;
  ParamLayout layout;

 private:
  std::vector<std::byte> bytes_;

 public:
  Tensor flat;
};

inline EngineOptions roomy() {
  return {.max_total_tokens = 4096,
          .page_size = 16,
          .max_running_requests = 64,
          .chunked_prefill_size = 512,
          .max_context_len = 96,
          .seed = 7};
}

/// An engine that is ready, with weights of version 1.
class EngineRig {
 public:
  explicit EngineRig(const SmallModel& model, const EngineOptions& options = roomy())
      : device(make_test_device()),
        tokenizer(Tokenizer::bytes()),
        engine(options, model.config, model.layout, {*device, ledger}, &tokenizer) {
    engine.onload_weights();
    engine.onload_kv();
    engine.update_weights(model.flat, 1);
  }

  std::vector<GenerateResult> generate(const std::vector<GenerateRequest>& requests) {
    return engine.generate(requests, {.weight_version = 1});
  }
  GenerateResult generate(const GenerateRequest& request) {
    return generate(std::vector{request}).front();
  }

  std::unique_ptr<Device> device;
  Ledger ledger;
  Tokenizer tokenizer;
  Engine engine;
};

/// A prompt of that many arbitrary bytes.
inline std::vector<int32_t> some_prompt(int64_t length, int32_t salt) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i)
    prompt.push_back(static_cast<int32_t>((i * 37 + salt * 101 + i * i * 3) % 256));
  return prompt;
}

}  // namespace miles::test
