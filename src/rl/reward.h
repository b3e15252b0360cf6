// Rewards that are computed here: exact, math and regex (--rm-type). rl/reward_command.h asks a
// program of the user's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace miles {

enum class RmType {
  exact,  // response and label are equal, white space at their ends apart
  math,   // the response's final number equals the label's (rl/reward_math.h)
  regex,  // the pattern is found in the response and captures the label
};

std::string_view name_of(RmType type);

/// The type of that name. Throws Error{flags} listing the names.
RmType parse_rm_type(std::string_view name);

/// What scoring one response came to.
struct RewardResult {
  std::optional<double> reward = {};  // finite; none: no score, which is never the same as 0
  std::string problem = {};           // why there is none; empty when there is one
};

struct RmOptions {
  RmType type = RmType::exact;
  std::string pattern = {};  // --rm-regex: PCRE2, UTF-8; "(?s)" lets . match a newline
};

/// Scores 1 or 0. One object may be used by many threads at once.
class RuleReward {
 public:
  /// Throws Error{flags} when the pattern does not compile (naming the place in it) or is missing.
  explicit RuleReward(const RmOptions& options);
  ~RuleReward();
  RuleReward(RuleReward&&) noexcept;
  RuleReward& operator=(RuleReward&&) noexcept;

  /// Whether there is something to compare with: without it a response would score 0 whatever it
  /// says. exact: not empty, white space apart; math: a number; regex: any label will do.
  bool can_score(std::string_view label) const;

  /// regex: the first match counts; when the pattern has a group and the label is not empty, group
  /// 1 must equal the label (white space at the ends apart). A match that runs into the work limit
  /// has no reward but a problem.
  RewardResult score(std::string_view response, std::string_view label) const;

 private:
  class Pattern;
  RmType type_;
  std::unique_ptr<const Pattern> pattern_;  // regex only
};

}  // namespace miles
