// The rotary table: cosines and sines per absolute position, made on the host once, so that every
// forward multiplies by the very same numbers. Sources: Su et al. 2021 (arXiv:2104.09864); the
// frequencies of "rope_type": "llama3" as documented with Llama 3.1's config.
#pragma once

#include <vector>

#include "model/config.h"

namespace miles {

/// [positions, D] f32: D/2 cosines, then D/2 sines. f32 arithmetic in Hugging Face's order.
std::vector<float> make_rope_table(const ModelConfig& config, int64_t positions);

}  // namespace miles
