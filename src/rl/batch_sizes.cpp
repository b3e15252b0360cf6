#include "rl/batch_sizes.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace miles {
namespace {

constexpr int64_t kMost = 1'000'000'000;
constexpr int64_t kMostSamples = 10'000'000;  // of a rollout: bytes for so many can be counted
constexpr int64_t kDefaultGroup = 8;

void check_range(const std::optional<int64_t>& value, const char* flag) {
  if (value && (*value < 1 || *value > kMost))
    fail(ErrorCode::flags, "{} is {}; it must be from 1 to {}", flag, *value, kMost);
}

/// "--flag 8", for messages.
std::string shown(const char* flag, int64_t value) {
  return fmt::format("{} {}", flag, value);
}

/// `total` divided by a flag's value; refuses a remainder, proposing the values nearest to it that
/// divide.
int64_t divide(int64_t total, const std::string& total_shown, std::pair<const char*, int64_t> by) {
  const auto [flag, value] = by;
  if (total % value == 0) return total / value;
  int64_t below = std::min(value, total), above = value;
  while (total % below != 0) --below;
  while (above < total && total % above != 0) ++above;
  const std::string nearest = above < total || below == value
                                  ? fmt::format("{} or {}", below, above)
                                  : fmt::format("{}", below);
  fail(ErrorCode::flags, "{} = {}, which {} does not divide; set {} to {}, say", total_shown, total,
       shown(flag, value), flag, nearest);
}

int64_t samples_per_prompt(const BatchSizeFlags& flags) {
  if (flags.n_samples_per_prompt) return *flags.n_samples_per_prompt;
  if (flags.rollout_batch_size && flags.global_batch_size && flags.num_steps_per_rollout) {
    const int64_t samples = *flags.global_batch_size * *flags.num_steps_per_rollout;
    return divide(samples,
                  shown("--global-batch-size", *flags.global_batch_size) + " × " +
                      shown("--num-steps-per-rollout", *flags.num_steps_per_rollout),
                  {"--rollout-batch-size", *flags.rollout_batch_size});
  }
  return flags.use == SampleUse::alone ? 1 : kDefaultGroup;
}

/// The case without --rollout-batch-size: it follows from the steps.
BatchSizes from_steps(const BatchSizeFlags& flags, int64_t n) {
  if (!flags.global_batch_size)
    fail(ErrorCode::flags,
         "neither --rollout-batch-size nor --global-batch-size is given; give "
         "--rollout-batch-size, the "
         "number of prompts in a rollout");
  const int64_t global = *flags.global_batch_size;
  const int64_t steps = flags.num_steps_per_rollout.value_or(1);
  const int64_t rollout =
      divide(global * steps,
             shown("--global-batch-size", global) + " × " + shown("--num-steps-per-rollout", steps),
             {"--n-samples-per-prompt", n});
  return {rollout, n, global, steps};
}

BatchSizes from_rollout(const BatchSizeFlags& flags, int64_t n) {
  const int64_t rollout = *flags.rollout_batch_size;
  const int64_t samples = rollout * n;
  const std::string samples_shown =
      shown("--rollout-batch-size", rollout) + " × " + shown("--n-samples-per-prompt", n);
  if (!flags.global_batch_size) {
    const int64_t steps = flags.num_steps_per_rollout.value_or(1);
    return {rollout, n, divide(samples, samples_shown, {"--num-steps-per-rollout", steps}), steps};
  }
  const int64_t global = *flags.global_batch_size;
  if (!flags.num_steps_per_rollout)
    return {rollout, n, global, divide(samples, samples_shown, {"--global-batch-size", global})};
  const int64_t steps = *flags.num_steps_per_rollout;
  if (samples != global * steps)
    fail(ErrorCode::flags,
         "{} = {} samples a rollout, but {} × {} = {}; the two must be equal: leave out "
         "--num-steps-per-rollout or --global-batch-size, it follows from the others (a run's "
         "config.toml gives all four)",
         samples_shown, samples, shown("--global-batch-size", global),
         shown("--num-steps-per-rollout", steps), global * steps);
  return {rollout, n, global, steps};
}

}  // namespace

BatchSizes resolve_batch_sizes(const BatchSizeFlags& flags) {
  check_range(flags.rollout_batch_size, "--rollout-batch-size");
  check_range(flags.n_samples_per_prompt, "--n-samples-per-prompt");
  check_range(flags.global_batch_size, "--global-batch-size");
  check_range(flags.num_steps_per_rollout, "--num-steps-per-rollout");
  const int64_t n = samples_per_prompt(flags);
  const BatchSizes sizes = flags.rollout_batch_size ? from_rollout(flags, n) : from_steps(flags, n);
  const int64_t samples = sizes.rollout_batch_size * sizes.n_samples_per_prompt;
  if (samples > kMostSamples)
    fail(ErrorCode::flags, "{} × {} is {} samples a rollout; at most {} can be held",
         shown("--rollout-batch-size", sizes.rollout_batch_size),
         shown("--n-samples-per-prompt", sizes.n_samples_per_prompt), samples, kMostSamples);
  if (sizes.n_samples_per_prompt == 1 && flags.use == SampleUse::compared_in_groups)
    fail(ErrorCode::flags,
         "--n-samples-per-prompt is 1 (--rollout-batch-size {}, --global-batch-size {}, "
         "--num-steps-per-rollout {}): a sample compared with itself alone has no advantage and "
         "nothing would be learned; set --n-samples-per-prompt to 2 or more",
         sizes.rollout_batch_size, sizes.global_batch_size, sizes.num_steps_per_rollout);
  return sizes;
}

}  // namespace miles
