// What a rollout's samples say about it, under Miles' metric names.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rl/sample.h"

namespace miles {

using NamedValues = std::vector<std::pair<std::string, double>>;

/// Metrics of a rollout; empty for no samples. `advantages`: [samples] from group_advantages.
///   rollout/raw_reward          mean reward         } of the samples that have one;
///   rollout/rewards             mean advantage      } left out when none has
///   rollout/response_len/mean, median, max, min     tokens, all samples
///   rollout/truncated_ratio     share that met the length limit
///   rollout/repetition_frac     share that ends in a loop (ends_in_loop)
///   rollout/num_retractions     times that samples lost their KV pages to others, all samples:
///                               many say that --max-total-tokens is small
///   rollout/zero_std/count      groups of two rewards or more, all equal: they teach nothing
///   rollout/reward_error        samples without a reward
NamedValues rollout_metrics(std::span<const Sample> samples, std::span<const float> advantages);

/// Whether the tokens end in one phrase said over and over: at least four times and 32 tokens in
/// all. (Miles calls a text repetitive when its last 10,000 characters compress tenfold; this sees
/// the same collapse in short responses, too.)
bool ends_in_loop(std::span<const int32_t> tokens);

}  // namespace miles
