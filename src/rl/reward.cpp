#include "rl/reward.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"
#include "rl/reward_math.h"

namespace miles {
namespace {

/// Steps of backtracking a match may take: about a tenth of a second.
constexpr uint32_t kMatchLimit = 2'000'000;
constexpr uint32_t kHeapLimitKib = 64 << 10;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

RewardResult scored(bool right) {
  return {.reward = right ? 1.0 : 0.0, .problem = {}};
}

}  // namespace

/// A compiled pattern. Matching reads it only, so that threads may share it.
class RuleReward::Pattern {
 public:
  explicit Pattern(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    // A response may be cut inside a character: invalid bytes must not match, nor refuse the whole.
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr));
    if (!code_)
      fail(ErrorCode::flags, "--rm-regex \"{}\": {} (at byte {})", pattern, pcre2_message(error),
           offset);
    context_.reset(pcre2_match_context_create(nullptr));
    MILES_CHECK(context_ != nullptr, "out of memory");
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
    pcre2_pattern_info(code_.get(), PCRE2_INFO_CAPTURECOUNT, &groups_);
  }

  RewardResult score(std::string_view response, std::string_view label) const {
    const std::unique_ptr<pcre2_match_data, Free> match(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    MILES_CHECK(match != nullptr, "out of memory");
    const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(response.data()),
                                  response.size(), 0, 0, match.get(), context_.get());
    if (found == PCRE2_ERROR_NOMATCH) return scored(false);
    if (found < 0) return {.reward = {}, .problem = "--rm-regex gave up: " + pcre2_message(found)};
    if (groups_ == 0 || label.empty()) return scored(true);
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
    if (found < 2 || ends[2] == PCRE2_UNSET) return scored(false);  // group 1 took no part
    return scored(trim(response.substr(ends[2], ends[3] - ends[2])) == trim(label));
  }

 private:
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_context, Free> context_;
  uint32_t groups_ = 0;  // capture groups in the pattern
};

std::string_view name_of(RmType type) {
  switch (type) {
    case RmType::exact:
      return "exact";
    case RmType::math:
      return "math";
    case RmType::regex:
      return "regex";
  }
  MILES_CHECK(false, "reward type {}", static_cast<int>(type));
  return {};
}

RmType parse_rm_type(std::string_view name) {
  for (const RmType type : {RmType::exact, RmType::math, RmType::regex})
    if (name == name_of(type)) return type;
  fail(ErrorCode::flags, "--rm-type {}: unknown; there are exact, math and regex", name);
}

RuleReward::RuleReward(const RmOptions& options) : type_(options.type) {
  if (type_ != RmType::regex) return;
  if (options.pattern.empty())
    fail(ErrorCode::flags, "--rm-type regex needs a pattern: give --rm-regex");
  pattern_ = std::make_unique<const Pattern>(options.pattern);
}

RuleReward::~RuleReward() = default;
RuleReward::RuleReward(RuleReward&&) noexcept = default;
RuleReward& RuleReward::operator=(RuleReward&&) noexcept = default;

bool RuleReward::can_score(std::string_view label) const {
  switch (type_) {
    case RmType::exact:
      return !trim(label).empty();
    case RmType::math:
      return final_number(label).has_value();
    case RmType::regex:
      return true;
  }
  MILES_CHECK(false, "reward type {}", static_cast<int>(type_));
  return false;
}

RewardResult RuleReward::score(std::string_view response, std::string_view label) const {
  switch (type_) {
    case RmType::exact:
      return scored(trim(response) == trim(label));
    case RmType::math:
      return scored(same_final_number(response, label));
    case RmType::regex:
      return pattern_->score(response, label);
  }
  MILES_CHECK(false, "reward type {}", static_cast<int>(type_));
  return {};
}

}  // namespace miles
