// Where a run begins: afresh or from a checkpoint, in directories that are its own.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/file.h"
#include "rl/checkpoint.h"
#include "rl/train_setup.h"

namespace miles {

struct RunStart {
  std::optional<std::filesystem::path> checkpoint;  // none: a new run
  RunState state;                                   // of the checkpoint
  std::string run_id;                               // the checkpoint's, or a new one
  int64_t first_rollout = 0;                        // that is to be done
};

/// What the checkpoints on disk allow, before anything is loaded. Throws Error{data} when --load has
/// none, or one of a run with other flags, and Error{flags} when --save has another run's.
RunStart find_start(const TrainSetup& setup);

/// rl/fingerprint.h, of all that a setup knows.
nlohmann::ordered_json fingerprint(const TrainSetup& setup);
nlohmann::ordered_json rounding_fingerprint(const TrainSetup& setup);

/// The directories that a run writes to, held against other runs as long as this lives. Throws
/// Error{data} when another run holds one, and as find_start().
class RunDirectories {
 public:
  RunDirectories(const TrainConfig& config, const RunStart& start);

 private:
  std::optional<ClaimedDirectory> run_dir_, save_;
};

}  // namespace miles
