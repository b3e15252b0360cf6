#include "actor/policy_loss.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace miles {
namespace {

constexpr float kMaxLogRatio =
    20;  // exp(20) is 4.9e8: beyond it nothing is learned, only overflowed
constexpr float kMaxLowVarKl = 10;

/// log a - log b, and whether a gradient passes through it.
struct LogRatio {
  float value = 0;
  float gradient = 1;  // ∂ value / ∂ log a: 1, or 0 where an infinity was replaced
};

LogRatio log_ratio(float log_a, float log_b) {
  if (!std::isinf(log_a) && !std::isinf(log_b)) return {.value = log_a - log_b};
  if (log_a == log_b) return {.value = 0, .gradient = 0};
  const float difference = log_a - log_b;  // ±inf, or NaN when the other is NaN
  return {.value = std::clamp(difference, -kMaxLogRatio, kMaxLogRatio), .gradient = 0};
}

/// A value and its derivative with respect to the token's log-prob.
struct Term {
  float value = 0;
  float gradient = 0;
};

Term k3(float d) {
  return {.value = std::expm1(-d) + d, .gradient = -std::expm1(-d)};
}

Term kl_estimate(float d, KlLossType type) {
  switch (type) {
    case KlLossType::k1:
      return {.value = d, .gradient = 1};
    case KlLossType::k2:
      return {.value = 0.5F * d * d, .gradient = d};
    case KlLossType::k3:
      return k3(d);
    case KlLossType::low_var_kl:
      break;
  }
  Term term = k3(std::clamp(d, -kMaxLogRatio, kMaxLogRatio));
  if (std::abs(d) > kMaxLogRatio || std::abs(term.value) > kMaxLowVarKl) term.gradient = 0;
  term.value = std::clamp(term.value, -kMaxLowVarKl, kMaxLowVarKl);
  return term;
}

Term kl_term(const TokenInput& input, const PolicyLossOptions& options) {
  const LogRatio d = log_ratio(input.log_prob, input.ref_log_prob);
  Term term = kl_estimate(d.value, options.kl_loss_type);
  if (d.gradient == 0) term.gradient = 0;
  return term;
}

struct PolicyTerm {
  Term loss;
  float clipped = 0;  // 1: the clipped ratio's loss was the larger
};

PolicyTerm policy_term(const LogRatio& ratio_log, float advantage,
                       const PolicyLossOptions& options) {
  const float low = 1.0F - options.eps_clip;
  const float high = 1.0F + options.eps_clip_high.value_or(options.eps_clip);
  const float ratio = std::exp(std::clamp(ratio_log.value, -kMaxLogRatio, kMaxLogRatio));
  const float unclipped_loss = -ratio * advantage;
  const float clipped_loss = -std::clamp(ratio, low, high) * advantage;

  PolicyTerm term;
  term.loss = {.value = unclipped_loss, .gradient = unclipped_loss};  // dρ/d log π = ρ
  if (clipped_loss > unclipped_loss) {
    term.loss = {.value = clipped_loss, .gradient = 0};
    term.clipped = 1;
  }
  if (options.eps_clip_c && advantage < 0) {
    const float most = -*options.eps_clip_c * advantage;
    if (most < term.loss.value) term.loss = {.value = most, .gradient = 0};
  }
  if (ratio_log.gradient == 0 || std::abs(ratio_log.value) > kMaxLogRatio) term.loss.gradient = 0;
  return term;
}

}  // namespace

void check_policy_loss_options(const PolicyLossOptions& options) {
  if (!(options.eps_clip > 0 && options.eps_clip < 1))
    fail(ErrorCode::flags, "--eps-clip is {}; it must be between 0 and 1", options.eps_clip);
  if (const auto high = options.eps_clip_high; high && !(*high > 0 && std::isfinite(*high)))
    fail(ErrorCode::flags, "--eps-clip-high is {}; it must be above 0", *high);
  if (const auto c = options.eps_clip_c; c && !(*c > 1 && std::isfinite(*c)))
    fail(ErrorCode::flags, "--eps-clip-c is {}; it must be above 1", *c);
  if (!std::isfinite(options.entropy_coef))
    fail(ErrorCode::flags, "--entropy-coef is {}; it must be finite", options.entropy_coef);
  if (!(options.kl_loss_coef >= 0 && std::isfinite(options.kl_loss_coef)))
    fail(ErrorCode::flags, "--kl-loss-coef is {}; it must be 0 or more", options.kl_loss_coef);
  if (options.kl_loss_coef != 0 && !options.use_kl_loss)
    fail(ErrorCode::flags, "--kl-loss-coef is {} but nothing uses it; add --use-kl-loss",
         options.kl_loss_coef);
}

TokenLoss policy_token_loss(const TokenInput& input, const PolicyLossOptions& options) {
  const LogRatio ratio_log = log_ratio(input.log_prob, input.old_log_prob);
  const PolicyTerm policy = policy_term(ratio_log, input.advantage, options);
  TokenLoss out{.loss = policy.loss.value,
                .pg_loss = policy.loss.value,
                .entropy = input.entropy,
                .clipped = policy.clipped,
                .ppo_kl = -ratio_log.value,
                .d_log_prob = policy.loss.gradient};
  if (options.entropy_coef != 0) {
    out.loss -= options.entropy_coef * input.entropy;
    out.d_entropy = -options.entropy_coef;
  }
  if (options.use_kl_loss) {
    const Term kl = kl_term(input, options);
    out.kl_loss = kl.value;
    if (options.kl_loss_coef != 0) {
      out.loss += options.kl_loss_coef * kl.value;
      out.d_log_prob += options.kl_loss_coef * kl.gradient;
    }
  }
  return out;
}

TokenLoss sft_token_loss(const TokenInput& input) {
  return {.loss = -input.log_prob,
          .pg_loss = -input.log_prob,
          .entropy = input.entropy,
          .d_log_prob = -1};
}

}  // namespace miles
