// What benchmarks of whole models share: a preset's shape with random weights and random text.
#pragma once

#include <fmt/ranges.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "actor/micro_batch.h"
#include "base/error.h"
#include "base/rng.h"
#include "model/config.h"

namespace miles::bench {

/// A preset, with what may differ from it.
struct Shape {
  std::string model = "qwen3-0.6b";
  std::string dtype = "bfloat16";  // or float32
  int64_t layers = 0, vocab = 0;   // 0: the model's
};

/// Text never ends by itself. Throws Error{flags}.
inline ModelConfig make_config(const Shape& shape) {
  std::optional<ModelConfig> config = find_preset(shape.model);
  if (!config)
    fail(ErrorCode::flags, "--model {}: allowed are {}", shape.model,
         fmt::join(preset_names(), ", "));
  if (shape.layers > 0) config->num_hidden_layers = shape.layers;
  if (shape.vocab > 0) config->vocab_size = shape.vocab;
  config->dtype = shape.dtype == "float32" ? DType::f32 : DType::bf16;
  config->eos_token_ids.clear();
  config->bos_token_id = -1;
  check_config(*config, shape.model);
  return *config;
}

inline std::vector<int32_t> random_ids(const ModelConfig& config, int64_t length,
                                       int64_t sequence) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>(uniform_below(static_cast<uint64_t>(config.vocab_size), 1,
                                                     RngUse::test, static_cast<uint64_t>(sequence),
                                                     static_cast<uint64_t>(i))));
  return ids;
}

/// Policy gradient over whole sequences: every token but the first is learned from.
inline std::vector<TrainSample> make_samples(const ModelConfig& config, int64_t count,
                                             int64_t seq_len) {
  std::vector<TrainSample> samples;
  for (int64_t s = 0; s < count; ++s) {
    TrainSample sample;
    sample.tokens = random_ids(config, seq_len, s);
    sample.response_length = seq_len - 1;
    const auto length = static_cast<size_t>(sample.response_length);
    sample.loss_mask.assign(length, 1);
    sample.old_log_probs.assign(length, -std::log(static_cast<float>(config.vocab_size)));
    sample.advantages.assign(length, s % 2 == 0 ? 1.0F : -1.0F);
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace miles::bench
