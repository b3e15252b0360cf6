#include "model/hf_config.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "hub/json_file.h"
#include "model/rope_parameters.h"

namespace miles {
namespace {

struct Architecture {
  const char* model_type;
  const char* class_name;  // as "architectures" lists it
  int64_t head_dim;        // when the key is absent; 0: hidden_size / heads
  bool qk_norm;            // whether query and key heads are normed
};
constexpr Architecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM", 0, false},
    {"qwen3", "Qwen3ForCausalLM", 128, true},
};
constexpr const char* kSupported =
    "supported are llama (LlamaForCausalLM) and qwen3 (Qwen3ForCausalLM), both dense";

const Architecture& read_architecture(const JsonFields& fields) {
  const std::string type = fields.text("model_type");
  const auto* found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                   [&](const Architecture& one) { return type == one.model_type; });
  if (found == std::end(kArchitectures))
    fail(ErrorCode::data, "{}: model_type is '{}'; {}", fields.where(), type, kSupported);
  if (const nlohmann::json* classes = fields.find("architectures"))
    // A reward model or a classifier has the same model_type and no language-model head.
    if (!classes->is_array() ||
        std::find(classes->begin(), classes->end(), found->class_name) == classes->end())
      fail(ErrorCode::data, "{}: architectures is {}; {}", fields.where(), classes->dump(),
           kSupported);
  return *found;
}

void refuse_sliding_window(const JsonFields& fields, int64_t layers) {
  const auto refuse = [&](const std::string& why) {
    fail(ErrorCode::data, "{}: {}: sliding-window attention is not implemented", fields.where(),
         why);
  };
  if (const nlohmann::json* types = fields.find("layer_types")) {
    if (!types->is_array()) refuse("layer_types is not a list");
    for (const nlohmann::json& type : *types)
      if (type != "full_attention") refuse(fmt::format("layer_types holds {}", type.dump()));
  } else if (fields.find_flag("use_sliding_window").value_or(false)) {
    // Blocks from max_window_layers on have the window; without that key, take no chances.
    if (fields.find_integer("max_window_layers").value_or(0) < layers)
      refuse("use_sliding_window is true");
  }
}

void refuse_unimplemented(const JsonFields& fields, int64_t layers) {
  for (const char* key : {"attention_bias", "mlp_bias"})
    if (fields.find_flag(key).value_or(false))
      fail(ErrorCode::data, "{}: {} is true; only models without biases are supported",
           fields.where(), key);
  if (const auto activation = fields.find_text("hidden_act"); activation.value_or("silu") != "silu")
    fail(ErrorCode::data, "{}: hidden_act is '{}'; only silu is supported", fields.where(),
         *activation);
  if (fields.has("quantization_config"))
    fail(ErrorCode::data,
         "{}: quantization_config is set; only unquantized weights are supported: fetch "
         "the model in float32, bfloat16 or float16",
         fields.where());
  refuse_sliding_window(fields, layers);
}

DType read_dtype(const JsonFields& fields) {
  const char* key = fields.has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = fields.find_text(key).value_or("float32");
  if (name == "float32") return DType::f32;
  if (name == "bfloat16" || name == "float16") return DType::bf16;
  fail(ErrorCode::data, "{}: {} is '{}'; supported are float32, bfloat16 and float16",
       fields.where(), key, name);
}

int32_t token_id(const JsonFields& fields, const char* key, const nlohmann::json& value) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
      value.get<int64_t>() > std::numeric_limits<int32_t>::max())
    fail(ErrorCode::data, "{}: {} holds {}, expected a token id", fields.where(), key,
         value.dump());
  return value.get<int32_t>();
}

/// Adds the ids under eos_token_id, an integer or a list, to those already known.
void add_eos_ids(const JsonFields& fields, std::vector<int32_t>& ids) {
  const nlohmann::json* value = fields.find("eos_token_id");
  if (value == nullptr) return;
  const auto add = [&](const nlohmann::json& one) {
    const int32_t id = token_id(fields, "eos_token_id", one);
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  if (value->is_array())
    std::for_each(value->begin(), value->end(), add);
  else
    add(*value);
}

void read_extents(const JsonFields& fields, const Architecture& architecture, ModelConfig& config) {
  config.vocab_size = fields.integer("vocab_size");
  config.hidden_size = fields.integer("hidden_size");
  config.intermediate_size = fields.integer("intermediate_size");
  config.num_hidden_layers = fields.integer("num_hidden_layers");
  config.num_attention_heads = fields.integer("num_attention_heads");
  config.num_key_value_heads =
      fields.find_integer("num_key_value_heads").value_or(config.num_attention_heads);
  config.max_position_embeddings = fields.integer("max_position_embeddings");
  if (const auto head_dim = fields.find_integer("head_dim")) {
    config.head_dim = *head_dim;
  } else if (architecture.head_dim != 0) {
    config.head_dim = architecture.head_dim;
  } else {
    if (config.num_attention_heads < 1 || config.hidden_size % config.num_attention_heads != 0)
      fail(ErrorCode::data,
           "{}: hidden_size {} is not a multiple of num_attention_heads {}, and head_dim "
           "is missing",
           fields.where(), config.hidden_size, config.num_attention_heads);
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
}

nlohmann::ordered_json ids_json(const std::vector<int32_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids[0];
  return ids;
}

nlohmann::ordered_json id_json(int32_t id) {
  if (id == -1) return nullptr;
  return id;
}

const Architecture& architecture_of(const ModelConfig& config) {
  const auto* found =
      std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                   [&](const Architecture& one) { return config.model_type == one.model_type; });
  MILES_CHECK(found != std::end(kArchitectures), "model_type {}", config.model_type);
  return *found;
}

}  // namespace

ModelConfig read_hf_config(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "config.json";
  const nlohmann::json content = read_json_object(path);
  const JsonFields fields(content, path.string());
  const Architecture& architecture = read_architecture(fields);
  ModelConfig config;
  config.model_type = architecture.model_type;
  config.qk_norm = architecture.qk_norm;
  read_extents(fields, architecture, config);
  refuse_unimplemented(fields, config.num_hidden_layers);
  config.rms_norm_eps = fields.number("rms_norm_eps");
  read_rope(fields, config);
  config.tie_word_embeddings = fields.find_flag("tie_word_embeddings").value_or(false);
  config.dtype = read_dtype(fields);
  config.initializer_range = fields.find_number("initializer_range").value_or(0.02);
  if (const nlohmann::json* id = fields.find("bos_token_id"))
    config.bos_token_id = token_id(fields, "bos_token_id", *id);
  add_eos_ids(fields, config.eos_token_ids);
  check_config(config, path.string());

  const std::filesystem::path generation = dir / "generation_config.json";
  if (std::filesystem::exists(generation)) {
    const nlohmann::json more = read_json_object(generation);
    add_eos_ids(JsonFields(more, generation.string()), config.eos_token_ids);
    check_config(config, generation.string());
  }
  return config;
}

std::string to_hf_config_json(const ModelConfig& config) {
  check_config(config, "config.json");
  nlohmann::ordered_json json;
  json["architectures"] = {architecture_of(config).class_name};
  json["model_type"] = config.model_type;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.rms_norm_eps;
  write_rope(config, json);
  json["hidden_act"] = "silu";
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  if (config.model_type == "llama") json["mlp_bias"] = false;
  if (config.model_type == "qwen3") {
    json["use_sliding_window"] = false;
    json["sliding_window"] = nullptr;
    json["max_window_layers"] = config.num_hidden_layers;
  }
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["bos_token_id"] = id_json(config.bos_token_id);
  json["eos_token_id"] = ids_json(config.eos_token_ids);
  json["initializer_range"] = config.initializer_range;
  json["torch_dtype"] = name_of(config.dtype);  // transformers 4
  json["dtype"] = name_of(config.dtype);        // transformers 5
  json["use_cache"] = true;
  return json.dump(2) + "\n";
}

std::string to_hf_generation_config_json(const ModelConfig& config) {
  nlohmann::ordered_json json;
  if (config.bos_token_id != -1) json["bos_token_id"] = config.bos_token_id;
  if (!config.eos_token_ids.empty()) json["eos_token_id"] = ids_json(config.eos_token_ids);
  return (json.is_null() ? nlohmann::ordered_json::object() : json).dump(2) + "\n";
}

}  // namespace miles
