#include "model/rope_parameters.h"

#include "base/error.h"

namespace miles {
namespace {

/// Reads {rope_type, …} of either spelling; nothing for the default type.
std::optional<RopeScaling> read_scaling(const JsonFields& fields) {
  // "type" is the name that the key had at first.
  const char* key = fields.has("rope_type") ? "rope_type" : "type";
  const std::string type = fields.find_text(key).value_or("default");
  if (type == "default") return std::nullopt;
  if (type != "llama3")
    fail(ErrorCode::data,
         "{}: {} is '{}'; supported are default and llama3. A model that was trained "
         "without it (YaRN on Qwen3 is an option, for longer contexts) works when the key is "
         "removed",
         fields.where(), key, type);
  return RopeScaling{
      .factor = fields.number("factor"),
      .low_freq_factor = fields.number("low_freq_factor"),
      .high_freq_factor = fields.number("high_freq_factor"),
      .original_max_position_embeddings = fields.integer("original_max_position_embeddings")};
}

void refuse_partial_rotation(const JsonFields& fields) {
  if (const auto part = fields.find_number("partial_rotary_factor"); part.value_or(1) != 1)
    fail(ErrorCode::data, "{}: partial_rotary_factor is {}; only 1 is supported", fields.where(),
         *part);
}

}  // namespace

void read_rope(const JsonFields& config_json, ModelConfig& config) {
  const std::string& where = config_json.where();
  std::optional<double> theta = config_json.find_number("rope_theta");
  refuse_partial_rotation(config_json);
  const auto old = config_json.find_object("rope_scaling");
  if (old) {
    config.rope_scaling = read_scaling(*old);
    refuse_partial_rotation(*old);
  }
  if (auto rope = config_json.find_object("rope_parameters")) {
    if (auto nested = rope->find_object("full_attention")) rope = nested;
    const std::optional<RopeScaling> scaling = read_scaling(*rope);
    if (old && scaling != config.rope_scaling)
      fail(ErrorCode::data,
           "{}: rope_scaling and rope_parameters contradict each other; remove one", where);
    config.rope_scaling = scaling;
    refuse_partial_rotation(*rope);
    const std::optional<double> inner = rope->find_number("rope_theta");
    if (theta && inner && *theta != *inner)
      fail(ErrorCode::data, "{}: rope_theta is {}, but {} in rope_parameters; remove one", where,
           *theta, *inner);
    if (inner) theta = inner;
  }
  // Llama's first configs have no such key, and mean 10000. Elsewhere its absence is a mistake.
  if (!theta && config.model_type != "llama")
    fail(ErrorCode::data, "{}: rope_theta is missing", where);
  config.rope_theta = theta.value_or(10000);
}

void write_rope(const ModelConfig& config, nlohmann::ordered_json& config_json) {
  nlohmann::ordered_json rope = {{"rope_type", "default"}};
  if (config.rope_scaling)
    rope = {{"rope_type", "llama3"},
            {"factor", config.rope_scaling->factor},
            {"low_freq_factor", config.rope_scaling->low_freq_factor},
            {"high_freq_factor", config.rope_scaling->high_freq_factor},
            {"original_max_position_embeddings",
             config.rope_scaling->original_max_position_embeddings}};
  config_json["rope_theta"] = config.rope_theta;
  config_json["rope_scaling"] = config.rope_scaling ? rope : nlohmann::ordered_json(nullptr);
  rope["rope_theta"] = config.rope_theta;
  config_json["rope_parameters"] = rope;
}

}  // namespace miles
