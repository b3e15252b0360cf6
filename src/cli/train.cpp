#include "base/interrupt.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "rl/train_loop.h"

namespace miles {
namespace {

/// The flags that were left open, as they were worked out, so that config.toml alone repeats the
/// run.
void write_down(CommandLine& line, const TrainSetup& setup) {
  const TrainConfig& config = setup.config;
  line.resolve("--n-samples-per-prompt", std::to_string(config.batch.n_samples_per_prompt));
  line.resolve("--rollout-batch-size", std::to_string(config.batch.rollout_batch_size));
  line.resolve("--global-batch-size", std::to_string(config.batch.global_batch_size));
  line.resolve("--num-steps-per-rollout", std::to_string(config.batch.num_steps_per_rollout));
  line.resolve("--max-tokens-per-gpu", std::to_string(*config.max_tokens_per_gpu));
  line.resolve("--recompute-num-layers", std::to_string(setup.plan.actor.recompute_num_layers));
  line.resolve("--max-total-tokens", std::to_string(setup.plan.engine.max_total_tokens));
  line.resolve("--max-running-requests", std::to_string(setup.plan.engine.max_running_requests));
  line.resolve("--chunked-prefill-size", std::to_string(setup.plan.engine.chunked_prefill_size));
  const auto text = [](bool value) { return value ? "true" : "false"; };
  line.resolve("--offload-train", text(config.colocate.handoff.offload_train));
  line.resolve("--offload-rollout", text(config.colocate.handoff.offload_rollout));
}

}  // namespace

int train_command(int argc, const char* const* argv) {
  watch_for_interrupts();  // before anything starts a thread
  CommandLine line("train", "Trains a policy: generate, score, train, hand over, again.");
  TrainConfig config;
  BatchSizeFlags batch;
  add_train_flags(line, config, batch);
  if (!line.parse(argc, argv)) return 0;
  finish_train_flags(line, config, batch);
  TrainSetup setup = prepare_training(std::move(config));
  write_down(line, setup);
  const TrainSummary summary = run_training(setup, line.to_toml());
  log::info("{}: {}; device peak {} of planned {}, host peak {} of planned {}",
            summary.signal == 0 ? "done" : "ended", format_count(summary.rollouts, "rollout"),
            format_bytes(summary.device_peak), format_bytes(setup.plan.memory.device_peak),
            format_bytes(summary.host_peak), format_bytes(setup.plan.memory.host_peak));
  return summary.signal == 0 ? 0 : 128 + summary.signal;
}

}  // namespace miles
