// Hugging Face's config.json and generation_config.json ↔ ModelConfig, in the spellings of
// transformers 4 and 5. What would change the arithmetic and is not implemented is refused, never
// ignored.
#pragma once

#include <filesystem>
#include <string>

#include "model/config.h"

namespace miles {

/// Reads `dir`/config.json, and the end-of-sequence ids of `dir`/generation_config.json where it
/// exists. float16 models are computed in bfloat16, which holds their range. The result has passed
/// check_config. Throws Error{data} naming the file and the key: not JSON, a key missing or of the
/// wrong type, an architecture, activation, bias, window, quantization or rotary scaling that is
/// not implemented.
ModelConfig read_hf_config(const std::filesystem::path& dir);

/// The content of a config.json that transformers 4 and 5 both read.
std::string to_hf_config_json(const ModelConfig& config);

/// The content of a generation_config.json: the begin and end ids.
std::string to_hf_generation_config_json(const ModelConfig& config);

}  // namespace miles
