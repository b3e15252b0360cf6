// The loop: generate → hand over → train → (save) → hand back → (evaluate), as Miles' train.py has
// it.
#pragma once

#include <string>

#include "rl/train_setup.h"

namespace miles {

/// How a run ended.
struct TrainSummary {
  int64_t rollouts = 0;        // done in this process
  double last_raw_reward = 0;  // NaN when there was none
  int64_t device_peak = 0;     // bytes, of the ledger
  int64_t host_peak = 0;       // bytes, of the ledger
  int signal = 0;              // that ended it: SIGINT or SIGTERM; 0: it came to its end
};

/// Runs to the end, or from loading on to the safe point after a signal: the rollout that is not
/// done then is not recorded, and where a resumed run begins. `resolved_flags`: config.toml's
/// content. Throws Error.
TrainSummary run_training(TrainSetup& setup, const std::string& resolved_flags);

}  // namespace miles
