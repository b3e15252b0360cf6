// What a decoder-only transformer looks like: the fields of a Hugging Face config.json that change
// the arithmetic, for Llama and Qwen3 dense models. Everything else in that file is ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace miles {

/// Llama 3's stretching of the rotary frequencies (config "rope_type": "llama3").
struct RopeScaling {
  double factor = 1;                                // wavelengths beyond the context shrink by it
  double low_freq_factor = 1;                       // λ > context / low: inv_freq / factor
  double high_freq_factor = 4;                      // λ < context / high: unchanged
  int64_t original_max_position_embeddings = 8192;  // tokens
  bool operator==(const RopeScaling&) const = default;
};

struct ModelConfig {
  std::string model_type;                        // "llama" or "qwen3"
  int64_t vocab_size = 0;                        // V: rows of the embedding
  int64_t hidden_size = 0;                       // H: width of the residual stream
  int64_t intermediate_size = 0;                 // F: width of the MLP
  int64_t num_hidden_layers = 0;                 // L: blocks
  int64_t num_attention_heads = 0;               // query heads
  int64_t num_key_value_heads = 0;               // key/value heads; divides the query heads
  int64_t head_dim = 0;                          // D: elements per head
  int64_t max_position_embeddings = 0;           // longest context, tokens
  double rms_norm_eps = 1e-6;                    // added to the mean square
  double rope_theta = 10000;                     // rotary base
  std::optional<RopeScaling> rope_scaling = {};  // only Llama 3 has it
  bool qk_norm = false;                // RMSNorm on each query and key head before the rotation
  bool tie_word_embeddings = false;    // the head is the embedding
  DType dtype = DType::f32;            // f32 or bf16: how weights and activations are kept
  std::vector<int32_t> eos_token_ids;  // union of config.json's and generation_config.json's
  int32_t bos_token_id = -1;           // -1: none
  double initializer_range = 0.02;     // standard deviation of random weights

  int64_t q_size() const { return num_attention_heads * head_dim; }
  int64_t kv_size() const { return num_key_value_heads * head_dim; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

/// Refuses a config that no model can have (zero extents, heads that do not divide, odd head_dim,
/// …). Throws Error{data}; `where` names the file or preset.
void check_config(const ModelConfig& config, const std::string& where);

/// The named presets ("qwen3-0.6b", …), in the order they are listed to users.
std::vector<std::string> preset_names();

/// The architecture of a preset, or nothing when there is none of that name.
std::optional<ModelConfig> find_preset(const std::string& name);

}  // namespace miles
