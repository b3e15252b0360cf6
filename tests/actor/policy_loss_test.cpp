#include "actor/policy_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace miles {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// The same formulas in double, written down on their own: the oracle for values and finite
/// differences.
struct Reference {
  PolicyLossOptions options;
  double old_log_prob, ref_log_prob, advantage, entropy;

  double kl(double log_prob) const {
    double d = log_prob - ref_log_prob;
    switch (options.kl_loss_type) {
      case KlLossType::k1:
        return d;
      case KlLossType::k2:
        return d * d / 2;
      case KlLossType::k3:
        return std::exp(-d) - 1 + d;
      case KlLossType::low_var_kl:
        d = std::min(20.0, std::max(-20.0, d));
        return std::min(10.0, std::max(-10.0, std::exp(-d) - 1 + d));
    }
    return 0;
  }
  double ratio(double log_prob) const {
    return std::exp(std::min(20.0, std::max(-20.0, log_prob - old_log_prob)));
  }
  double low() const { return 1.0F - options.eps_clip; }
  double high() const { return 1.0F + options.eps_clip_high.value_or(options.eps_clip); }
  double pg(double log_prob) const {
    const double rho = ratio(log_prob);
    const double clipped = std::min(high(), std::max(low(), rho));
    const double larger = std::max(-rho * advantage, -clipped * advantage);
    if (options.eps_clip_c && advantage < 0)
      return std::min(larger, -static_cast<double>(*options.eps_clip_c) * advantage);
    return larger;
  }
  double loss(double log_prob, double with_entropy) const {
    double total = pg(log_prob) - static_cast<double>(options.entropy_coef) * with_entropy;
    if (options.use_kl_loss) total += static_cast<double>(options.kl_loss_coef) * kl(log_prob);
    return total;
  }
  /// Whether a kink of the loss lies within `reach` of `log_prob`.
  bool near_kink(double log_prob, double reach) const {
    const double r = log_prob - old_log_prob, d = log_prob - ref_log_prob;
    std::vector<double> distances = {r - std::log(low()), r - std::log(high()), std::abs(r) - 20,
                                     std::abs(d) - 20, kl(log_prob) - 10};
    if (options.eps_clip_c)
      distances.push_back(r - std::log(static_cast<double>(*options.eps_clip_c)));
    return std::any_of(distances.begin(), distances.end(),
                       [reach](double distance) { return std::abs(distance) < reach; });
  }
};

Reference reference(const TokenInput& in, const PolicyLossOptions& options) {
  return {options, in.old_log_prob, in.ref_log_prob, in.advantage, in.entropy};
}

float draw(uint64_t i, uint64_t what) {
  return uniform(11, RngUse::test, what, i);
}

TokenInput random_input(uint64_t i) {
  // Mostly small steps around the clip's bounds, sometimes wild ones.
  const float spread = draw(i, 0) < 0.2F ? 30.0F : 0.8F;
  const float old = -6 * draw(i, 1);
  return {.log_prob = old + spread * (draw(i, 2) - 0.5F),
          .old_log_prob = old,
          .ref_log_prob = old + spread * (draw(i, 3) - 0.5F),
          .advantage = 4 * draw(i, 4) - 2,
          .entropy = 5 * draw(i, 5)};
}

PolicyLossOptions random_options(uint64_t i) {
  PolicyLossOptions options{.eps_clip = 0.05F + 0.3F * draw(i, 6)};
  if (i % 2 == 0) options.eps_clip_high = 0.05F + 0.5F * draw(i, 7);
  if (i % 3 == 0) options.eps_clip_c = 1.5F + 3 * draw(i, 8);
  if (i % 5 < 2) options.entropy_coef = 0.1F * draw(i, 9);
  options.use_kl_loss = i % 7 < 4;
  options.kl_loss_coef = options.use_kl_loss ? draw(i, 10) : 0;
  options.kl_loss_type = static_cast<KlLossType>(i % 4);
  return options;
}

TEST(PolicyLoss, GradientsAreTheFiniteDifferencesOfTheLoss) {
  constexpr double kStep = 1e-5;
  int compared = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    const TokenInput in = random_input(i);
    const PolicyLossOptions options = random_options(i);
    const Reference exact = reference(in, options);
    const TokenLoss found = policy_token_loss(in, options);
    const double at = in.log_prob;
    // Differences of two float log-probs are off by a rounding of each; ρ and exp(-d) scale that.
    const double scale = 1 + std::abs(exact.pg(at)) +
                         (options.use_kl_loss ? std::exp(std::abs(at - in.ref_log_prob)) : 0);
    ASSERT_NEAR(found.loss, exact.loss(at, in.entropy), 1e-5 * scale) << i;
    if (exact.near_kink(at, 1e-4)) continue;
    const double slope =
        (exact.loss(at + kStep, in.entropy) - exact.loss(at - kStep, in.entropy)) / (2 * kStep);
    ASSERT_NEAR(found.d_log_prob, slope, 1e-5 * scale) << i;
    const double entropy_slope =
        (exact.loss(at, in.entropy + kStep) - exact.loss(at, in.entropy - kStep)) / (2 * kStep);
    ASSERT_NEAR(found.d_entropy, entropy_slope, 1e-6 * scale) << i;
    ++compared;
  }
  EXPECT_GT(compared, 19000);
}

/// Loss of a token whose ratio is exactly 1 + step / 8 (a log-ratio near its logarithm gives it).
TokenLoss at_ratio(float ratio, float advantage, const PolicyLossOptions& options) {
  return policy_token_loss({.log_prob = std::log(ratio), .advantage = advantage}, options);
}

TEST(PolicyLoss, TheClipStopsTheGradientOnlyWhereItMakesTheLossLarger) {
  const PolicyLossOptions options{.eps_clip = 0.2F, .eps_clip_high = 0.3F};
  EXPECT_EQ(at_ratio(1.4F, 1, options).d_log_prob, 0);  // good token, already more likely
  EXPECT_EQ(at_ratio(1.4F, 1, options).clipped, 1);
  EXPECT_FLOAT_EQ(at_ratio(1.4F, 1, options).pg_loss, -1.3F);
  EXPECT_NE(at_ratio(1.25F, 1, options).d_log_prob, 0);  // below the upper bound
  EXPECT_NE(at_ratio(0.7F, 1, options).d_log_prob, 0);   // good token, less likely: pull back
  EXPECT_EQ(at_ratio(0.7F, 1, options).clipped, 0);
  EXPECT_EQ(at_ratio(0.7F, -1, options).d_log_prob, 0);  // bad token, already less likely
  EXPECT_FLOAT_EQ(at_ratio(0.7F, -1, options).pg_loss, 0.8F);
  EXPECT_NE(at_ratio(1.4F, -1, options).d_log_prob, 0);  // bad token, more likely: push down
}

TEST(PolicyLoss, OnABoundTheGradientPasses) {
  // Bound and ratio are both exactly 1: the clip is the identity there.
  const TokenLoss found =
      policy_token_loss({.advantage = 2}, {.eps_clip = 0, .eps_clip_high = 0.0F});
  EXPECT_EQ(found.d_log_prob, -2);
  EXPECT_EQ(found.clipped, 0);
}

TEST(PolicyLoss, TheDualClipBoundsTheLossOfABadTokenOnly) {
  const PolicyLossOptions options{.eps_clip_c = 3.0F};
  EXPECT_FLOAT_EQ(at_ratio(5, -2, options).pg_loss, 6);
  EXPECT_EQ(at_ratio(5, -2, options).d_log_prob, 0);
  EXPECT_EQ(at_ratio(5, -2, options).clipped, 0);
  EXPECT_FLOAT_EQ(at_ratio(2.5F, -2, options).pg_loss, 5);
  EXPECT_FLOAT_EQ(at_ratio(2.5F, -2, options).d_log_prob, 5);
  EXPECT_FLOAT_EQ(at_ratio(5, 2, options).pg_loss, -2.4F);
}

TEST(PolicyLoss, AtTheRolloutsOwnWeightsItIsThePlainPolicyGradient) {
  const PolicyLossOptions options{
      .use_kl_loss = true, .kl_loss_coef = 0.5F, .kl_loss_type = KlLossType::k3};
  const TokenLoss found = policy_token_loss(
      {.log_prob = -1.7F, .old_log_prob = -1.7F, .ref_log_prob = -1.7F, .advantage = 0.75F},
      options);
  EXPECT_EQ(found.pg_loss, -0.75F);
  EXPECT_EQ(found.d_log_prob, -0.75F);
  EXPECT_EQ(found.ppo_kl, 0);
  EXPECT_EQ(found.kl_loss, 0);
  EXPECT_EQ(found.clipped, 0);
}

TEST(PolicyLoss, BeyondTwentyTheLogRatioIsHeldWithoutGradient) {
  const PolicyLossOptions options;
  const TokenLoss far = policy_token_loss({.log_prob = 25, .advantage = -1}, options);
  EXPECT_FLOAT_EQ(far.pg_loss, std::exp(20.0F));
  EXPECT_EQ(far.d_log_prob, 0);
  EXPECT_EQ(far.ppo_kl, -25);
  EXPECT_NE(policy_token_loss({.log_prob = 19, .advantage = -1}, options).d_log_prob, 0);
}

TEST(PolicyLoss, AZeroAdvantageMovesNothing) {
  const TokenLoss found = policy_token_loss({.log_prob = -1, .old_log_prob = -3}, {});
  EXPECT_EQ(found.loss, 0);
  EXPECT_EQ(found.d_log_prob, 0);
  EXPECT_EQ(found.clipped, 0);
}

TEST(PolicyLoss, AnUnusedKlIsNotEvenLookedAt) {
  const TokenLoss found = policy_token_loss({.ref_log_prob = std::nanf(""), .advantage = 1}, {});
  EXPECT_EQ(found.loss, -1);
  EXPECT_EQ(found.kl_loss, 0);
}

TEST(PolicyLoss, AnOverflowingKlWithoutWeightIsReportedButDoesNotTouchTheLoss) {
  const TokenLoss found =
      policy_token_loss({.log_prob = -200, .old_log_prob = -200, .ref_log_prob = 0, .advantage = 1},
                        {.use_kl_loss = true, .kl_loss_type = KlLossType::k3});
  EXPECT_EQ(found.kl_loss, kInf);
  EXPECT_EQ(found.loss, -1);
  EXPECT_EQ(found.d_log_prob, -1);
}

TEST(PolicyLoss, AnImpossibleTokenMakesNoNan) {
  for (const KlLossType type :
       {KlLossType::k1, KlLossType::k2, KlLossType::k3, KlLossType::low_var_kl}) {
    const PolicyLossOptions options{
        .entropy_coef = 0.1F, .use_kl_loss = true, .kl_loss_coef = 1, .kl_loss_type = type};
    for (int which = 1; which < 8; ++which) {
      for (const float advantage : {-1.0F, 0.0F, 1.0F}) {
        const TokenLoss found = policy_token_loss({.log_prob = (which & 1) != 0 ? -kInf : -1.0F,
                                                   .old_log_prob = (which & 2) != 0 ? -kInf : -1.0F,
                                                   .ref_log_prob = (which & 4) != 0 ? -kInf : -1.0F,
                                                   .advantage = advantage,
                                                   .entropy = 1},
                                                  options);
        for (const float value : {found.loss, found.pg_loss, found.kl_loss, found.ppo_kl,
                                  found.d_log_prob, found.d_entropy})
          EXPECT_TRUE(std::isfinite(value)) << which << " " << advantage;
        if ((which & 1) != 0) {
          EXPECT_EQ(found.d_log_prob, 0);
        }
      }
    }
  }
  const TokenLoss both =
      policy_token_loss({.log_prob = -kInf, .old_log_prob = -kInf, .advantage = 1}, {});
  EXPECT_EQ(both.pg_loss, -1);
  EXPECT_EQ(both.ppo_kl, 0);
}

TEST(PolicyLoss, ANanIsNotHidden) {
  EXPECT_TRUE(std::isnan(policy_token_loss({.log_prob = std::nanf(""), .advantage = 1}, {}).loss));
  EXPECT_TRUE(std::isnan(policy_token_loss({.advantage = std::nanf("")}, {}).loss));
}

TEST(PolicyLossOptions, OutOfRangeAreRefused) {
  EXPECT_NO_THROW(check_policy_loss_options({}));
  EXPECT_THROW(check_policy_loss_options({.eps_clip = 0}), Error);
  EXPECT_THROW(check_policy_loss_options({.eps_clip = 1}), Error);
  EXPECT_THROW(check_policy_loss_options({.eps_clip_high = -0.1F}), Error);
  EXPECT_THROW(check_policy_loss_options({.eps_clip_c = 1.0F}), Error);
  EXPECT_THROW(check_policy_loss_options({.entropy_coef = kInf}), Error);
  EXPECT_THROW(check_policy_loss_options({.use_kl_loss = true, .kl_loss_coef = -1}), Error);
  EXPECT_THROW(check_policy_loss_options({.kl_loss_coef = 1}), Error);
}

TEST(SftLoss, IsTheNegativeLogProb) {
  const TokenLoss found = sft_token_loss({.log_prob = -2.5F, .entropy = 1});
  EXPECT_EQ(found.loss, 2.5F);
  EXPECT_EQ(found.d_log_prob, -1);
  EXPECT_EQ(found.d_entropy, 0);
  EXPECT_EQ(sft_token_loss({.log_prob = -kInf}).loss, kInf);
}

}  // namespace
}  // namespace miles
