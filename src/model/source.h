// Where a model comes from: a preset or a directory says what it looks like, a directory or a seed
// what its weights are, a directory how text becomes ids.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "model/config.h"
#include "model/layout.h"
#include "text/tokenizer.h"

namespace miles {

/// How weights and activations are kept.
enum class DTypeChoice { automatic, float32, bfloat16 };

/// As given by flags; empty: not given.
struct ModelOptions {
  // Directories are Hugging Face directories, or checkpoints of ours, which hold one as hf/.
  std::string model;          // --model: a preset's name, or a directory with a config.json
  std::string hf_checkpoint;  // --hf-checkpoint: a directory; its weights
  std::string tokenizer;      // --tokenizer: a directory with a tokenizer.json
  bool init_random = false;   // --init-random: weights drawn from the seed
  DTypeChoice dtype = DTypeChoice::automatic;          // --dtype; automatic: as the config says
  uint64_t seed = 1234;                                // --seed: of random weights
  std::string hf_checkpoint_flag = "--hf-checkpoint";  // how errors name it
};

/// A model that has been found, and checked as far as that goes without reading weights.
class ModelSource {
 public:
  /// Throws Error{flags} when the options contradict or say too little (a preset without weights,
  /// …), and Error{data} for what is wrong in a directory.
  static ModelSource resolve(const ModelOptions& options);

  const ModelConfig& config() const { return config_; }
  const std::string& description() const { return description_; }  // "qwen3-0.6b, random weights"

  /// Writes the flat weights (host memory).
  void fill(const ParamLayout& layout, const Tensor& flat) const;
  /// The tokenizer of --tokenizer, of the weights' or the model's directory, or, with random
  /// weights and none, bytes. Throws Error{data} when its ids exceed the vocabulary.
  Tokenizer load_tokenizer() const;
  /// The directory that load_tokenizer reads; none: bytes.
  std::optional<std::filesystem::path> tokenizer_directory() const;

 private:
  ModelOptions options_;
  ModelConfig config_;
  std::optional<std::filesystem::path> weights_;       // directory; none: random
  std::optional<std::filesystem::path> architecture_;  // directory; none: a preset
  std::string description_;
};

}  // namespace miles
