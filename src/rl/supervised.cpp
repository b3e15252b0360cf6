#include "rl/supervised.h"

namespace miles {

int64_t answer_with_labels(std::span<Sample> samples, const SupervisedOptions& options) {
  int64_t cut = 0;
  for (Sample& sample : samples) {
    sample.tokens = options.tokenizer.encode_prompt(sample.prompt);
    std::vector<int32_t> answer = options.tokenizer.encode(sample.label, {.add_special = false});
    if (options.eos) answer.push_back(*options.eos);
    const int64_t room = options.max_length - std::ssize(sample.tokens);
    const bool fits = std::ssize(answer) <= room;
    if (!fits) answer.resize(static_cast<size_t>(room));
    cut += fits ? 0 : 1;
    sample.status = fits ? SampleStatus::completed : SampleStatus::truncated;
    sample.response = sample.label;
    sample.response_length = std::ssize(answer);
    sample.tokens.insert(sample.tokens.end(), answer.begin(), answer.end());
    sample.loss_mask.assign(answer.size(), 1);
    sample.rollout_log_probs.assign(answer.size(), 0.0F);
  }
  return cut;
}

}  // namespace miles
