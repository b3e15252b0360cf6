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

/// The prompts of "synthetic:addition[?key=value&...]"; row i is a pure function of (path, seed,
/// i).
///   max    largest number to add, 9 ... 10^9; default 99
///   count  prompts, 1 ... 10^7; default 10000 in train, 500 in eval
///   split  train (default) or eval. A tenth of all sums belongs to eval, the rest to train; which
///   one a sum belongs to
///          depends on its two numbers alone, so the two never share a prompt, whatever seed and
///          max.
///   noise  percent of labels that are wrong, 0 ... 100; default 0: one of their digits is another.
///   To learn from, badly.
/// Throws Error{flags} naming the option that cannot be read.
std::vector<Prompt> synthetic_prompts(const std::string& path, uint64_t seed);

}  // namespace miles
