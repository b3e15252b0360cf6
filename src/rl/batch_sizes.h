// How a rollout's samples divide into optimizer steps:
//   rollout_batch_size × n_samples_per_prompt = global_batch_size × num_steps_per_rollout
#pragma once

#include <cstdint>
#include <optional>

namespace miles {

/// Whether advantages compare the samples of a prompt (GRPO and kin) or not (SFT).
enum class SampleUse { compared_in_groups, alone };

/// The flags of these names as given; none: not given.
struct BatchSizeFlags {
  std::optional<int64_t> rollout_batch_size = {};     // prompts a rollout
  std::optional<int64_t> n_samples_per_prompt = {};   // samples a prompt
  std::optional<int64_t> global_batch_size = {};      // samples an optimizer step
  std::optional<int64_t> num_steps_per_rollout = {};  // optimizer steps a rollout
  SampleUse use = SampleUse::compared_in_groups;
};

/// All four, and the equation above holds.
struct BatchSizes {
  int64_t rollout_batch_size = 0;     // prompts a rollout
  int64_t n_samples_per_prompt = 0;   // samples a prompt
  int64_t global_batch_size = 0;      // samples a step
  int64_t num_steps_per_rollout = 0;  // optimizer steps a rollout

  int64_t samples_per_rollout() const { return rollout_batch_size * n_samples_per_prompt; }
  bool operator==(const BatchSizes&) const = default;
};

/// Any three give the fourth. Otherwise n_samples_per_prompt is 8 (1 when samples are used alone),
/// and num_steps_per_rollout 1 where the rest does not say it.
/// Throws Error{flags} with all the numbers and what to change: too few given, numbers that do not
/// divide or contradict, numbers outside 1 … 10^9, one sample a prompt where samples are compared
/// in groups.
BatchSizes resolve_batch_sizes(const BatchSizeFlags& flags);

}  // namespace miles
