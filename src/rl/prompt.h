// A prompt as the data gives it, and where prompts come from.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace miles {

struct Prompt {
  std::string text = {};         // as given to the tokenizer
  std::string label = {};        // expected answer; empty when there is none
  nlohmann::json metadata = {};  // the row's own object; {} when there is none
  int64_t row = 0;               // number among the file's rows (blank lines do not count), from 0
};

struct DataOptions {
  /// "rows.jsonl", "rows.jsonl@[a:b]" (rows a to b-1; either may be left out, negative counts from
  /// the end), or "synthetic:addition?max=99&count=10000&split=train" (rl/synthetic.h).
  std::string path = {};
  std::string input_key = "input";        // key of the prompt
  std::string label_key = "label";        // key of the expected answer; empty: there are no labels
  std::string metadata_key = "metadata";  // key of the metadata object, which a row may lack
  bool shuffle = false;                   // a new order in every epoch; otherwise the data's own
  uint64_t seed = 42;                     // of the order and of synthetic data
};

}  // namespace miles
