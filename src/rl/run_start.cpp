#include "rl/run_start.h"

#include "base/log.h"
#include "observe/run_info.h"
#include "rl/fingerprint.h"

namespace miles {

nlohmann::ordered_json fingerprint(const TrainSetup& setup) {
  return fingerprint(setup.config, setup.model.config(), setup.plan.actor.optimizer.schedule);
}

nlohmann::ordered_json rounding_fingerprint(const TrainSetup& setup) {
  return rounding_fingerprint(setup.config, setup.device->name());
}

RunStart find_start(const TrainSetup& setup) {
  const CheckpointConfig& config = setup.config.checkpoint;
  RunStart start;
  start.run_id = new_run_id();
  if (!config.load.empty()) {
    start.checkpoint = find_checkpoint(config.load);
    start.state = read_run_state(*start.checkpoint);
    start.first_rollout = start.state.rollout_id + 1;
    start.run_id = start.state.run_id;
    check_fingerprint(start.state.fingerprint, fingerprint(setup), *start.checkpoint);
    for (const std::string& line :
         rounding_differences(start.state.fingerprint, rounding_fingerprint(setup)))
      log::warn("--load {}: {}", start.checkpoint->string(), line);
  }
  if (!config.save.empty())
    check_save_directory(config.save, {start.run_id, start.first_rollout});
  else
    log::warn("no checkpoint will be written: --save DIR was not given{}",
              config.load.empty() ? "" : ", and --load only reads");
  return start;
}

RunDirectories::RunDirectories(const TrainConfig& config, const RunStart& start) {
  const std::string &run_dir = config.run_dir, &save = config.checkpoint.save;
  if (!run_dir.empty()) run_dir_.emplace(run_dir, "--run-dir");
  if (save.empty()) return;
  const bool same =
      run_dir_ && std::filesystem::exists(save) && std::filesystem::equivalent(run_dir, save);
  if (!same) save_.emplace(save, "--save");
  // Another run may just have ended.
  check_save_directory(save, {start.run_id, start.first_rollout});
}

}  // namespace miles
