#include "model/config.h"

#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace miles {
namespace {

struct Preset {
  const char* name;
  int64_t layers, hidden, heads, ffn;  // blocks, H, query heads, F
  bool tied;                           // whether the head is the embedding
};

// Qwen3's dense models as published (https://huggingface.co/Qwen), all with 8 key/value heads of
// 128. qwen3-6b is ours: 6.2 billion parameters in Qwen3's proportions, a size that they leave out.
constexpr std::array<Preset, 7> kPresets = {{
    {"qwen3-0.6b", 28, 1024, 16, 3072, true},
    {"qwen3-1.7b", 28, 2048, 16, 6144, true},
    {"qwen3-4b", 36, 2560, 32, 9728, true},
    {"qwen3-6b", 36, 3456, 32, 10368, false},
    {"qwen3-8b", 36, 4096, 32, 12288, false},
    {"qwen3-14b", 40, 5120, 40, 17408, false},
    {"qwen3-32b", 64, 5120, 64, 25600, false},
}};

ModelConfig expand(const Preset& preset) {
  return {.model_type = "qwen3",
          .vocab_size = 151936,
          .hidden_size = preset.hidden,
          .intermediate_size = preset.ffn,
          .num_hidden_layers = preset.layers,
          .num_attention_heads = preset.heads,
          .num_key_value_heads = 8,
          .head_dim = 128,
          .max_position_embeddings = 40960,
          .rms_norm_eps = 1e-6,
          .rope_theta = 1e6,
          .rope_scaling = std::nullopt,
          .qk_norm = true,
          .tie_word_embeddings = preset.tied,
          .dtype = DType::bf16,
          .eos_token_ids = {151645, 151643},
          .bos_token_id = 151643,
          .initializer_range = 0.02};
}

/// An extent and the most that it may be: far beyond any model, near enough that products of
/// extents stay within an int64.
struct Extent {
  const char* name;
  int64_t value;
  int64_t most;
};

void check_extents(const ModelConfig& config, const std::string& where) {
  constexpr int64_t kWidest = 1 << 20;
  const Extent extents[] = {
      {"vocab_size", config.vocab_size, std::numeric_limits<int32_t>::max()},
      {"hidden_size", config.hidden_size, kWidest},
      {"intermediate_size", config.intermediate_size, kWidest},
      {"num_hidden_layers", config.num_hidden_layers, 1 << 12},
      {"num_attention_heads", config.num_attention_heads, 1 << 12},
      {"num_key_value_heads", config.num_key_value_heads, 1 << 12},
      {"head_dim", config.head_dim, 1 << 10},
      {"max_position_embeddings", config.max_position_embeddings, 1 << 30},
  };
  for (const Extent& extent : extents)
    if (extent.value < 1 || extent.value > extent.most)
      fail(ErrorCode::data, "{}: {} is {}, allowed are 1 to {}", where, extent.name, extent.value,
           extent.most);
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    fail(ErrorCode::data, "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}",
         where, config.num_attention_heads, config.num_key_value_heads);
  if (config.head_dim % 2 != 0)
    fail(ErrorCode::data, "{}: head_dim is {}; the rotary embedding needs an even one", where,
         config.head_dim);
}

void check_positive(const std::string& where, const char* name, double value) {
  if (!(value > 0) || !std::isfinite(value))
    fail(ErrorCode::data, "{}: {} is {}, expected a finite number above 0", where, name, value);
}

void check_numbers(const ModelConfig& config, const std::string& where) {
  check_positive(where, "rms_norm_eps", config.rms_norm_eps);
  check_positive(where, "rope_theta", config.rope_theta);
  check_positive(where, "initializer_range", config.initializer_range);
  if (!config.rope_scaling) return;
  const RopeScaling& rope = *config.rope_scaling;
  check_positive(where, "rope_scaling: factor", rope.factor);
  check_positive(where, "rope_scaling: low_freq_factor", rope.low_freq_factor);
  check_positive(where, "rope_scaling: original_max_position_embeddings",
                 static_cast<double>(rope.original_max_position_embeddings));
  if (!(rope.high_freq_factor > rope.low_freq_factor) || !std::isfinite(rope.high_freq_factor))
    fail(ErrorCode::data,
         "{}: rope_scaling: high_freq_factor is {}, expected more than low_freq_factor {}", where,
         rope.high_freq_factor, rope.low_freq_factor);
}

void check_tokens(const ModelConfig& config, const std::string& where) {
  const auto check = [&](const char* name, int32_t id) {
    if (id < 0 || id >= config.vocab_size)
      fail(ErrorCode::data, "{}: {} is {}, outside the vocabulary of {}", where, name, id,
           config.vocab_size);
  };
  for (const int32_t id : config.eos_token_ids) check("eos_token_id", id);
  if (config.bos_token_id != -1) check("bos_token_id", config.bos_token_id);
}

}  // namespace

void check_config(const ModelConfig& config, const std::string& where) {
  if (config.model_type != "llama" && config.model_type != "qwen3")
    fail(ErrorCode::data, "{}: model_type is '{}', supported are llama and qwen3", where,
         config.model_type);
  // It follows from the architecture, and is kept beside it only because the forward asks for it.
  if (config.qk_norm != (config.model_type == "qwen3"))
    fail(ErrorCode::data, "{}: qk_norm is {} in a {} model", where, config.qk_norm,
         config.model_type);
  if (config.dtype != DType::f32 && config.dtype != DType::bf16)
    fail(ErrorCode::data, "{}: dtype is {}, supported are float32 and bfloat16", where,
         name_of(config.dtype));
  check_extents(config, where);
  check_numbers(config, where);
  check_tokens(config, where);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

std::optional<ModelConfig> find_preset(const std::string& name) {
  for (const Preset& preset : kPresets)
    if (name == preset.name) return expand(preset);
  return std::nullopt;
}

}  // namespace miles
