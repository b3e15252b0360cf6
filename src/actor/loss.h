// The loss of a step: token losses weighted into one number, and what is reported of it.
#pragma once

#include <span>
#include <vector>

#include "actor/micro_batch.h"
#include "actor/policy_loss.h"

namespace miles {

enum class LossType { policy_loss, sft_loss };

struct LossOptions {
  LossType type = LossType::policy_loss;
  PolicyLossOptions policy;
  bool calculate_per_token_loss = false;  // mean over the step's tokens instead of samples' means
  float temperature = 1;                  // of the rollout: logits are divided by it here as well
};

/// Each sample's weight of one of its counting tokens. Per sample: 1 / (tokens counting · samples);
/// per token: 1 / tokens counting in the step. A sample with none has weight 0: never a division by
/// 0.
std::vector<float> token_weights(std::span<const TrainSample> samples, const LossOptions& options);

/// Weighted sums over a step's counting tokens, in f64; names are Miles' train/* metrics.
struct LossReport {
  double loss = 0;
  double pg_loss = 0;
  double kl_loss = 0;
  double entropy_loss = 0;
  double pg_clipfrac = 0;
  double ppo_kl = 0;
  int64_t tokens = 0;  // that counted

  void add(const TokenLoss& token, double weight);
};

}  // namespace miles
