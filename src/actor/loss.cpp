#include "actor/loss.h"

namespace miles {

std::vector<float> token_weights(std::span<const TrainSample> samples, const LossOptions& options) {
  int64_t all = 0;
  for (const TrainSample& sample : samples) all += sample.masked_in();
  std::vector<float> weights;
  for (const TrainSample& sample : samples) {
    const int64_t own = sample.masked_in();
    const double denominator = options.calculate_per_token_loss
                                   ? static_cast<double>(all)
                                   : static_cast<double>(own) * static_cast<double>(samples.size());
    weights.push_back(own == 0 ? 0.0F : static_cast<float>(1.0 / denominator));
  }
  return weights;
}

void LossReport::add(const TokenLoss& token, double weight) {
  loss += weight * token.loss;
  pg_loss += weight * token.pg_loss;
  kl_loss += weight * token.kl_loss;
  entropy_loss += weight * token.entropy;
  pg_clipfrac += weight * token.clipped;
  ppo_kl += weight * token.ppo_kl;
  ++tokens;
}

}  // namespace miles
