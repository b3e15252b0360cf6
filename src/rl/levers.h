// What to change so that a run that does not fit would: the run is planned again with other values,
// so that what is named does fit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rl/train_config.h"

namespace miles {

/// A flag that what a run needs, or may use, follows from.
struct Lever {
  /// Of what is lost when it is moved.
  enum class Cost {
    memory,  // nothing but memory that was not to be used
    time,    // of the run, at most; the samples and the sizes of steps stay
    task,    // what is learned, or how
  };
  enum class Unit {
    count,
    bytes,
    given,  // a switch: there is one value, and to say it is to give the flag
  };

  std::string flag;             // "--max-tokens-per-gpu"
  std::vector<int64_t> values;  // to choose from: what it is now first, what fits most easily last
  void (*set)(TrainConfig& config, int64_t value) = nullptr;
  Cost cost = Cost::time;
  Unit unit = Unit::count;
  /// How a value is given where `flag` before it is not all: "--num-steps-per-rollout 4 --global-…".
  std::function<std::string(int64_t)> says = {};
};

/// now, and the powers of two and halves more than those that are below it, down to `least` itself.
/// `now` alone where it is not above.
std::vector<int64_t> values_down_to(int64_t least, int64_t now);

/// now, what is needed, whole GiB above that, and at the end `most`. `now` alone where it is not
/// below.
std::vector<int64_t> budgets_up_to(int64_t most, int64_t now, int64_t needed);

/// Says what `config` would fit with, first within the budgets and then with larger ones: each flag
/// that is enough by itself, at the value nearest to what it is now; those that cost the task only
/// where no other is. Where none is enough by itself, as few as are together, the task's last. Else
/// what is lacking even with all of them. `shortage`: what that configuration lacks; none: it fits.
/// Levers are named in the order given.
std::string what_fits(
    const TrainConfig& config, std::span<const Lever> levers,
    const std::function<std::optional<std::string>(const TrainConfig&)>& shortage);

}  // namespace miles
