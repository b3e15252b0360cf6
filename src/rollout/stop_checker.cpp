#include "rollout/stop_checker.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace miles {

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop_id:
    case FinishReason::stop_string:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::abort:
      return "abort";
  }
  return "";
}

StopChecker::StopChecker(const SamplingParams& params, std::vector<int32_t> stop_ids,
                         const Tokenizer* tokenizer)
    : stop_ids_(std::move(stop_ids)),
      stop_(params.stop),
      min_new_tokens_(params.min_new_tokens),
      strings_(params.stop) {
  if (tokenizer == nullptr && !stop_.empty())
    fail(ErrorCode::flags, "stop string '{}' needs a tokenizer: give stop token ids instead",
         stop_.front());
  if (tokenizer != nullptr)
    detokenizer_.emplace(*tokenizer, DecodeOptions{.skip_special = params.skip_special_tokens});
}

std::optional<Finish> StopChecker::push(int32_t id) {
  ++drawn_;
  if (std::ranges::find(stop_ids_, id) != stop_ids_.end()) {
    if (auto late = flush()) return late;
    return Finish{.reason = FinishReason::stop_id, .matched_id = id};
  }
  if (!detokenizer_) return std::nullopt;
  detokenizer_->push(id);
  return scan();
}

std::optional<Finish> StopChecker::flush() {
  if (!detokenizer_) return std::nullopt;
  detokenizer_->flush();
  return scan();
}

std::optional<Finish> StopChecker::scan() {
  if (stop_.empty()) return std::nullopt;
  const std::string_view text = detokenizer_->text();
  while (const auto match = strings_.scan(text.substr(search_begin_))) {
    const size_t begin = search_begin_ + match->begin;
    if (drawn_ >= min_new_tokens_) {
      text_end_ = begin;
      return Finish{.reason = FinishReason::stop_string,
                    .matched_string = strings_.string(match->which)};
    }
    search_begin_ = begin + 1;
    strings_ = StopStrings(stop_);
  }
  return std::nullopt;
}

std::string_view StopChecker::text() const {
  return detokenizer_ ? std::string_view(detokenizer_->text()).substr(0, text_end_)
                      : std::string_view();
}

}  // namespace miles
