// Built-in data: sums of two numbers, "12+34=" with the label "46". Enough to see a model learn
// without any file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/prompt.h"

namespace miles {

/// Whether a --prompt-data value names built-in data ("synthetic:...").
bool is_synthetic(const std::string& path);

/// The prompts of "synthetic:addition[?key=value&...]"; row i depends on path, seed and i alone.
///   max    largest number to add, 9 ... 10^9; default 99
///   count  prompts, 1 ... 10^7; default 10000 in train, 500 in eval
///   split  train (default) or eval. A tenth of all sums belongs to eval, the rest to train. It
///          depends on the two numbers alone: whatever seed and max, no prompt is in both.
///   noise  percent of labels with one wrong digit, 0 ... 100; default 0: data to learn badly from
/// Throws Error{flags} naming the option that cannot be read.
std::vector<Prompt> synthetic_prompts(const std::string& path, uint64_t seed);

}  // namespace miles
