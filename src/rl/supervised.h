// Supervised learning: labels in the place of responses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "rl/sample.h"
#include "text/tokenizer.h"

namespace miles {

struct SupervisedOptions {
  const Tokenizer& tokenizer;
  std::optional<int32_t> eos;  // id that ends a response, and is learned with it
  int64_t max_length = 0;      // tokens of prompt and response; longer than every prompt
};

/// Makes of pending samples what a policy learns from: each one's response is its label and the
/// end, and all of it counts. What is longer than max_length is cut there, the end first, and the
/// sample is truncated; returns how many were.
int64_t answer_with_labels(std::span<Sample> samples, const SupervisedOptions& options);

}  // namespace miles
