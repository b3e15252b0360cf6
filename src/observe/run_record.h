// What a run has written about itself, read back for its report.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "observe/memory_timeline.h"
#include "observe/run_info.h"

namespace miles {

struct RunRecord {
  std::string name;                                    // of the run's directory
  std::vector<int64_t> rollout_ids;                    // [rollouts] ascending
  std::map<std::string, std::vector<double>> metrics;  // name → [rollouts]; NaN: not there
  std::vector<MemoryEvent> memory;  // times ascending also across resumes; may be empty
  std::string config;               // config.toml verbatim; empty when there is none
  RunInfo info;                     // of run.json; empty when there is none

  /// What its device is called in a report.
  const char* device_word() const { return info.device_is_gpu ? "GPU" : "device"; }

  /// A metric's values, or nothing when the run has none of that name. [rollouts]
  const std::vector<double>* find(const std::string& metric) const;
  /// Metrics that are an evaluation's mean reward, eval/{name}: without the -truncated_ratio beside
  /// each.
  std::vector<std::string> eval_scores() const;
};

/// Reads metrics.jsonl, memory.jsonl, config.toml and run.json of a run, finished or not; any may
/// be missing. Lines of the same rollout are merged, the later one winning. Throws Error{data}
/// naming the file and line, or when there is no such directory.
RunRecord read_run(const std::filesystem::path& run_dir);

}  // namespace miles
