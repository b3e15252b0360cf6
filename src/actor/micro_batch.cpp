#include "actor/micro_batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace miles {

int64_t TrainSample::masked_in() const {
  return std::accumulate(loss_mask.begin(), loss_mask.end(), int64_t{0});
}

std::vector<MicroBatch> pack_micro_batches(std::span<const TrainSample> samples,
                                           int64_t max_tokens) {
  std::vector<int32_t> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return samples[static_cast<size_t>(a)].tokens.size() >
           samples[static_cast<size_t>(b)].tokens.size();
  });

  std::vector<MicroBatch> packed;
  for (const int32_t index : order) {
    const TrainSample& sample = samples[static_cast<size_t>(index)];
    const auto length = static_cast<int64_t>(sample.tokens.size());
    MILES_CHECK(length <= max_tokens && sample.prompt_length() >= 1,
                "sample of {} tokens ({} of the prompt) with micro-batches of {}", length,
                sample.prompt_length(), max_tokens);
    auto bin = std::find_if(packed.begin(), packed.end(), [&](const MicroBatch& candidate) {
      return candidate.batch.tokens() + length <= max_tokens;
    });
    if (bin == packed.end()) bin = packed.emplace(packed.end());
    const auto begin = static_cast<int32_t>(bin->batch.tokens());
    bin->batch.append_packed(sample.tokens);
    const auto prompt = static_cast<int32_t>(sample.prompt_length());
    for (int32_t i = 0; i < sample.response_length; ++i) {
      bin->rows.push_back(begin + prompt - 1 + i);
      bin->targets.push_back(sample.tokens[static_cast<size_t>(int64_t{prompt} + i)]);
      bin->origins.push_back({.sample = index, .position = i});
    }
  }
  int64_t begin = 0;
  for (MicroBatch& micro_batch : packed) {
    micro_batch.token_begin = begin;
    begin += micro_batch.batch.tokens();
  }
  return packed;
}

int64_t most_micro_batches(int64_t tokens, int64_t sequences, int64_t max_tokens) {
  return std::min(sequences, 2 * ((tokens + max_tokens - 1) / max_tokens) + 1);
}

}  // namespace miles
