// Prompts in order, epoch after epoch, with a position that can be saved: a resumed run neither
// skips nor repeats one.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rl/prompt.h"
#include "rl/sample.h"

namespace miles {

class DataSource {
 public:
  /// Reads the whole data. Throws as read_prompt_file and synthetic_prompts do.
  static DataSource load(const DataOptions& options);

  /// Drops the prompts that `keep` refuses, before the first one is given; returns how many.
  int64_t keep_if(const std::function<bool(const Prompt&)>& keep);

  /// The next prompt. Epoch e runs through permutation(size, seed + e) when shuffling, else through
  /// the data's order; after the last prompt the next epoch begins. The reference lives as long as
  /// this object.
  const Prompt& next();

  /// The next prompt as `n_samples` pending samples: prompt, label, metadata, and the numbers
  /// group_index and index since the start of the run are set.
  std::vector<Sample> next_group(int64_t n_samples);

  /// The next `n_prompts` of them, one group after the other: a rollout's samples.
  std::vector<Sample> next_groups(int64_t n_prompts, int64_t n_samples);

  /// All prompts in the data's order, for evaluation.
  const std::vector<Prompt>& prompts() const { return prompts_; }
  int64_t size() const { return static_cast<int64_t>(prompts_.size()); }
  int64_t epoch() const { return epoch_id_; }

  /// The position, under Miles' names (sample_offset, epoch_id, sample_group_index, sample_index),
  /// and what it is a position in (num_prompts, shuffle, seed).
  nlohmann::json state() const;

  /// Continues from a state(). Throws Error{data} when the state is not one, or was saved over
  /// other data or another order, in which its position would mean other prompts.
  void restore(const nlohmann::json& state);

 private:
  DataSource() = default;
  void begin_epoch(int64_t epoch);

  std::string path_;                // for messages
  std::vector<Prompt> prompts_;     // [size]
  std::vector<int64_t> order_;      // [size] this epoch's permutation of 0…size-1
  bool shuffle_ = false;            // a new order in every epoch
  uint64_t seed_ = 0;               // of the order
  int64_t sample_offset_ = 0;       // prompts given in this epoch
  int64_t epoch_id_ = 0;            // epochs completed
  int64_t sample_group_index_ = 0;  // prompts given since the start of the run
  int64_t sample_index_ = 0;        // samples numbered since the start of the run
};

}  // namespace miles
