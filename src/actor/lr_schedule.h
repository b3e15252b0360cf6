// The learning rate of a step. Names are Megatron's (--lr-decay-style, --lr-warmup-iters, …).
#pragma once

#include <cstdint>

namespace miles {

enum class LrDecayStyle { constant, linear, cosine };

struct LrSchedule {
  double lr = 1e-6;   // after the warm-up
  double min_lr = 0;  // at the end of the decay
  LrDecayStyle style = LrDecayStyle::linear;
  int64_t warmup_steps = 0;  // steps of linear growth from lr/warmup_steps to lr
  int64_t decay_steps = 0;   // steps in all, the warm-up included; beyond it: min_lr

  /// For the optimizer step `step`, counted from 0.
  double at(int64_t step) const;
};

}  // namespace miles
