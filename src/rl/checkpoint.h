// Checkpoints: one directory per saved rollout, complete or absent, whatever kills the writer.
//
//   SAVE/iter_0000012/           (renamed into place when everything inside is on disk)
//     trainer.safetensors        weights, optimizer, counts (actor/actor_model.h)
//     run_state.json             the run's id, last rollout, data position, what a resumed run must
//                                share, and a checksum of all that
//     hf/                        the weights as a Hugging Face directory, with the tokenizer
//   SAVE/latest_checkpointed_iteration.txt
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "actor/actor_model.h"
#include "model/source.h"

namespace miles {

/// What a run is besides its weights.
struct RunState {
  std::string run_id;          // of its records (observe/run_info.h)
  int64_t rollout_id = 0;      // the last one that is done
  nlohmann::json data;         // DataSource::state()
  nlohmann::json fingerprint;  // what a resumed run must share (rl/fingerprint.h)
};

struct CheckpointWriter {
  std::filesystem::path directory;  // --save
  int64_t total_limit = 0;          // complete ones to keep; 0: all
  const ModelSource& source;        // for the tokenizer's files
  const ParamLayout& layout;

  /// Clears away what killed writers left, writes one, then removes what is beyond the limit,
  /// oldest first. Returns its directory. Throws Error{data} (disk full, …); the checkpoints that
  /// were there before stay.
  std::filesystem::path save(ActorModel& actor, const RunState& state) const;
};

/// Complete checkpoints in `directory`, oldest first. Half-written and half-removed ones are not
/// listed.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& directory);

/// A run that is about to write checkpoints.
struct SavingRun {
  std::string run_id;
  int64_t first_rollout = 0;
};

/// Throws Error{flags} when `directory` holds a checkpoint that the run did not write, of its first
/// rollout or later or of another run, or one of which that cannot be told.
void check_save_directory(const std::filesystem::path& directory, const SavingRun& run);

/// The newest complete one, or `directory` itself when it is one. Throws Error{data} when there is
/// none.
std::filesystem::path find_checkpoint(const std::filesystem::path& directory);

/// Runs `read`, which reads from the checkpoint. An Error{data} of it says, too, which one is before
/// this, and how to go on from there.
void reading(const std::filesystem::path& checkpoint, const std::function<void()>& read);

/// Reads run_state.json. Throws Error{data} when it is damaged: it has a checksum (hub/checksum.h).
RunState read_run_state(const std::filesystem::path& checkpoint);

}  // namespace miles
