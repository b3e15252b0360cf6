// The names that Hugging Face gives to a directory's weight files.
#pragma once

namespace miles {

inline constexpr const char* kSingleWeightFile = "model.safetensors";
inline constexpr const char* kWeightIndexFile = "model.safetensors.index.json";

}  // namespace miles
