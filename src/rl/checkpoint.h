// Checkpoints: one directory per saved rollout, complete or absent, whatever kills the writer.
//
//   SAVE/iter_0000012/           (renamed into place when everything inside is on disk)
//     trainer.safetensors        weights, optimizer, counts (actor/actor_model.h)
//     run_state.json             next rollout, data position, model, batch sizes
//     hf/                        the weights as a Hugging Face directory, with the tokenizer
//   SAVE/latest_checkpointed_iteration.txt
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "actor/actor_model.h"
#include "model/source.h"

namespace miles {

/// What a run is besides its weights.
struct RunState {
  int64_t rollout_id = 0;      // the last one that is done
  nlohmann::json data;         // DataSource::state()
  nlohmann::json fingerprint;  // what a resumed run must share: model extents, dtype, seeds
};

struct CheckpointWriter {
  std::filesystem::path directory;  // --save
  int64_t total_limit = 0;          // complete ones to keep; 0: all
  const ModelSource& source;        // for the tokenizer's files
  const ParamLayout& layout;

  /// Writes one, then removes what is beyond the limit, oldest first. Throws Error{data} (disk
  /// full, …); what was there before stays.
  void save(ActorModel& actor, const RunState& state) const;
};

/// Complete checkpoints in `directory`, oldest first. Half-written ones are not listed.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& directory);

/// The newest complete one, or `directory` itself when it is one. Throws Error{data} when there is
/// none.
std::filesystem::path find_checkpoint(const std::filesystem::path& directory);

/// Reads run_state.json. Throws Error{data} when it is damaged.
RunState read_run_state(const std::filesystem::path& checkpoint);

/// Throws Error{data} naming the first field in which the checkpoint's run differs from this one.
void check_fingerprint(const nlohmann::json& saved, const nlohmann::json& ours,
                       const std::filesystem::path& checkpoint);

}  // namespace miles
