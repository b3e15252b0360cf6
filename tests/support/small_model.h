// The small model of the trainer's and the engine's tests.
#pragma once

#include "model/config.h"

namespace miles::test {

/// Qwen3 with two layers, over the byte tokenizer's ids.
inline ModelConfig small_config(DType dtype) {
  ModelConfig config;
  config.model_type = "qwen3";
  config.vocab_size = 258;  // Tokenizer::bytes()
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 256;
  config.qk_norm = true;
  config.dtype = dtype;
  config.eos_token_ids = {257};
  config.initializer_range = 0.3;  // far from uniform, so that a wrong row shows
  return config;
}

/// The same model with extents that a GPU's tensor cores take, in bf16, and heads that Hopper has
/// kernels of its own for. Its embedding, too, is larger than a layer.
inline ModelConfig widened(ModelConfig config, int64_t head_dim = 64) {
  config.vocab_size = 2312;
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.head_dim = head_dim;
  config.initializer_range /= 2;  // as large sums as before
  return config;
}

}  // namespace miles::test
