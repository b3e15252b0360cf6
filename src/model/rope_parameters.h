// The rotary keys of a Hugging Face config.json. transformers 4 writes rope_theta and rope_scaling;
// 5 writes one rope_parameters {rope_type, rope_theta, …}, possibly one for each kind of layer.
#pragma once

#include <nlohmann/json.hpp>

#include "hub/json_file.h"
#include "model/config.h"

namespace miles {

/// Sets rope_theta and rope_scaling. Throws Error{data}: a rope_type other than default and llama3,
/// a partial rotation, or two spellings that contradict each other.
void read_rope(const JsonFields& config_json, ModelConfig& config);

/// Writes both spellings.
void write_rope(const ModelConfig& config, nlohmann::ordered_json& config_json);

}  // namespace miles
