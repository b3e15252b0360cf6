#include "rl/sample.h"

#include <algorithm>

#include "base/error.h"

namespace miles {
namespace {

/// `text` with every byte that is no UTF-8 replaced, so that it can be written as JSON by anyone.
nlohmann::json valid_text(const std::string& text) {
  using nlohmann::json;
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

std::string_view name_of(SampleStatus status) {
  switch (status) {
    case SampleStatus::pending:
      return "pending";
    case SampleStatus::completed:
      return "completed";
    case SampleStatus::truncated:
      return "truncated";
    case SampleStatus::aborted:
      return "aborted";
    case SampleStatus::failed:
      return "failed";
  }
  MILES_CHECK(false, "status {}", static_cast<int>(status));
  return {};
}

nlohmann::json to_json(const Sample& sample) {
  nlohmann::json out = {
      {"group_index", sample.group_index},
      {"index", sample.index},
      {"rollout_id", sample.rollout_id},
      {"prompt", valid_text(sample.prompt)},
      {"tokens", sample.tokens},
      {"response", valid_text(sample.response)},
      {"response_length", sample.response_length},
      {"label", valid_text(sample.label)},
      {"reward", nullptr},
      {"loss_mask", sample.loss_mask},
      {"rollout_log_probs", sample.rollout_log_probs},
      {"weight_versions", nlohmann::json::array()},
      {"num_retractions", sample.num_retractions},
      {"status", name_of(sample.status)},
      {"metadata", sample.metadata},
  };
  if (sample.reward) out["reward"] = *sample.reward;
  if (sample.weight_version >= 0) out["weight_versions"].push_back(sample.weight_version);
  return out;
}

void check_sample(const Sample& sample) {
  const auto length = static_cast<size_t>(sample.response_length);
  MILES_CHECK(sample.response_length >= 0 && length <= sample.tokens.size(),
              "sample {}: response of {} tokens in a sequence of {}", sample.index,
              sample.response_length, sample.tokens.size());
  MILES_CHECK(sample.loss_mask.size() == length,
              "sample {}: {} mask entries for {} response tokens", sample.index,
              sample.loss_mask.size(), length);
  MILES_CHECK(sample.rollout_log_probs.size() == length,
              "sample {}: {} log-probs for {} response tokens", sample.index,
              sample.rollout_log_probs.size(), length);
  MILES_CHECK(std::all_of(sample.loss_mask.begin(), sample.loss_mask.end(),
                          [](int32_t entry) { return entry == 0 || entry == 1; }),
              "sample {}: a loss mask entry is neither 0 nor 1", sample.index);
}

}  // namespace miles
