#include "actor/lr_schedule.h"

#include <cmath>
#include <numbers>

namespace miles {

double LrSchedule::at(int64_t step) const {
  if (step < warmup_steps)
    return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (style == LrDecayStyle::constant) return lr;
  if (step >= decay_steps) return min_lr;
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps - warmup_steps);
  const double share = style == LrDecayStyle::linear
                           ? 1 - progress
                           : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return min_lr + (lr - min_lr) * share;
}

}  // namespace miles
