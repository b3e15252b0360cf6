// The loss of one token and its derivatives. Everything here is token-local: sums over tokens and
// samples, masks and denominators are the caller's (a masked token is not to be asked for at all).
// Single precision, in one fixed order: same inputs, same bits.
#pragma once

#include <optional>

namespace miles {

/// Estimators of KL(π ‖ π_ref) from one token, d = log π - log π_ref.
/// Source: Schulman 2020, "Approximating KL divergence".
enum class KlLossType {
  k1,          // d
  k2,          // d² / 2
  k3,          // exp(-d) - 1 + d
  low_var_kl,  // k3 with d held in ±20 and the result in ±10
};

struct PolicyLossOptions {
  float eps_clip = 0.2F;                    // --eps-clip: the ratio is clipped at 1 - this
  std::optional<float> eps_clip_high = {};  // --eps-clip-high: and at 1 + this; none: eps_clip
  std::optional<float> eps_clip_c = {};  // --eps-clip-c: dual clip's c, above 1; none: no dual clip
  float entropy_coef = 0;                // --entropy-coef: the loss has - this × entropy
  bool use_kl_loss = false;              // --use-kl-loss: the loss has + kl_loss_coef × KL
  float kl_loss_coef = 0;                // --kl-loss-coef
  KlLossType kl_loss_type = KlLossType::k1;  // --kl-loss-type
};

/// Throws Error{flags} naming the option that is out of range.
void check_policy_loss_options(const PolicyLossOptions& options);

struct TokenInput {
  float log_prob = 0;      // log π of the token under the weights in training, nats
  float old_log_prob = 0;  // log π_old, under the weights of the rollout, nats
  float ref_log_prob = 0;  // log π_ref, nats; read only with use_kl_loss
  float advantage = 0;     // A
  float entropy = 0;       // of the distribution the token was drawn from, nats
};

struct TokenLoss {
  float loss = 0;     // pg_loss - entropy_coef × entropy + kl_loss_coef × kl_loss
  float pg_loss = 0;  // clipped policy-gradient loss
  float kl_loss = 0;  // the KL estimate, without its coefficient; 0 without use_kl_loss
  float entropy = 0;  // as given, nats
  float clipped = 0;  // 1: the clipped ratio gives the larger loss; 0: not (nor for the dual clip)
  float ppo_kl = 0;   // log π_old - log π
  float d_log_prob = 0;  // ∂ loss / ∂ log_prob
  float d_entropy = 0;   // ∂ loss / ∂ entropy
};

/// PPO's clipped objective as a loss (Schulman et al. 2017, eq. 7), ρ = π / π_old:
///   pg = max(-ρ A, -clip(ρ, 1 - ε, 1 + ε_high) A)
///   with the dual clip (Ye et al. 2020), where A < 0:  pg = min(pg, -c A)
/// log ρ is held in ±20, without gradient beyond. On a bound of ρ's clip the gradient still passes.
/// A log-prob of -∞ (an impossible token) makes no NaN: the log-ratio it is part of counts as ±20
/// (0 when both are -∞), without gradient, in ppo_kl too. A NaN goes through to the loss, where the
/// step's check sees it.
TokenLoss policy_token_loss(const TokenInput& input, const PolicyLossOptions& options);

/// Supervised fine-tuning: -log π, gradient -1. entropy is passed on; -∞ gives a loss of +∞, which
/// is no NaN.
TokenLoss sft_token_loss(const TokenInput& input);

}  // namespace miles
