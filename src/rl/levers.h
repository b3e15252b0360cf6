// What to change so that a run that does not fit would: the run is planned again with other values,
// so that what is named does fit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colocate/memory_limits.h"
#include "rl/train_config.h"

namespace miles {

/// A flag that what a run needs, or may use, follows from.
struct Lever {
  /// Of what is lost when it is moved, the least first.
  enum class Cost {
    time,    // of the run, at most, and how sums round; the samples and the sizes of steps stay
    memory,  // that was not to be used
    task,    // what is learned, or how
  };
  enum class Unit { count, bytes };

  std::string flag;             // "--max-tokens-per-gpu"
  std::vector<int64_t> values;  // to choose from: what it is now first, what fits most easily last
  /// Sets it; returns the value that it came to, which other flags may keep from being as asked for.
  std::function<int64_t(TrainConfig& config, int64_t value)> set;
  Cost cost = Cost::time;
  Unit unit = Unit::count;
  /// How a value is given where `flag` before it is not all: "--num-steps-per-rollout 4 --global-…".
  std::function<std::string(int64_t)> says = {};
};

/// Another way to share the device, which costs time at most.
struct Mode {
  std::string flags;  // "--colocate-memory-peak-device gpu"
  void (*set)(TrainConfig& config) = nullptr;
};

struct Remedies {
  std::vector<Lever> levers;  // in the order in which they are set and named
  std::vector<Mode> modes;    // other than the run's; at most one is taken
};

/// What a configuration lacks; none: it fits.
using LackOf = std::function<std::optional<Shortage>(const TrainConfig&)>;

/// now, and the powers of two and halves more than those that are below it, down to `least` itself.
/// `now` alone where it is not above.
std::vector<int64_t> values_down_to(int64_t least, int64_t now);

/// now, what is needed, eighths of a GiB, and at the end `most`. `now` alone where it is not below.
std::vector<int64_t> budgets_up_to(int64_t most, int64_t now, int64_t needed);

/// Says what `config` would fit with: flags that cost time alone, each of which is enough by itself
/// at the value nearest to what it is now, or several that are together, none of them idle; else
/// some that cost the task. Beside them larger budgets: without other flags, and, where time alone
/// is not enough within them, the least with those. Else what is lacking even with all.
std::string what_fits(const TrainConfig& config, const Remedies& remedies, const LackOf& lack_of);

}  // namespace miles
