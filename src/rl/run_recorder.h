// What a run leaves in --run-dir: metrics.jsonl, memory.jsonl, samples.jsonl, config.toml,
// run.json, report.html.
//
// metrics.jsonl has one line a rollout. It is on disk before the rollout's checkpoint is, so that a
// run resumed from that checkpoint has it; an evaluation after the rollout is added to it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "colocate/handoff.h"
#include "memory/ledger.h"
#include "observe/json_lines.h"
#include "observe/metrics.h"
#include "observe/run_info.h"
#include "rl/sample.h"

namespace miles {

/// Whose records are to be written, and where they begin.
struct RecordStart {
  RunInfo run = {};
  int64_t first_rollout = 0;
  bool resumed = false;  // from a checkpoint of the run
};

class RunRecorder {
 public:
  /// An empty directory records nothing. Records of another run (by its id) move to previous-N/
  /// within the directory; a resumed run keeps its own lines of rollouts before the first one.
  /// Throws Error{data}.
  RunRecorder(const std::filesystem::path& directory, const RecordStart& start);

  /// config.toml: every flag as it was resolved. One that a resumed run finds there stays as it is
  /// when it says the same (comments apart), and otherwise becomes config-before-rollout-N.toml.
  void write_config(const std::string& toml);
  void handoff(const HandoffEvent& event, int64_t rollout_id, const MemoryBudget& budget);
  void samples(std::span<const Sample> samples, std::span<const float> advantages);
  void metrics(int64_t rollout_id, const Metrics& metrics);
  /// Adds an evaluation's metrics to the line of that rollout, which is the last one; or makes the
  /// line where there is none (before training).
  void evaluation(int64_t rollout_id, const Metrics& metrics);
  /// Whether the last line of metrics.jsonl is that rollout's and has that metric.
  bool has(int64_t rollout_id, const std::string& metric) const;
  /// The samples of `rollout_id` go, unless it has a line in metrics.jsonl: it was not done.
  void forget_unfinished(int64_t rollout_id);
  /// What has been recorded is on disk when it returns. Throws Error{data}.
  void sync();
  /// report.html, from what has been recorded so far; false when nothing is recorded.
  bool write_report();
  const std::filesystem::path& directory() const { return directory_; }

 private:
  struct Files {
    JsonLines metrics;
    JsonLines memory;
    JsonLines samples;
  };

  std::filesystem::path directory_;
  int64_t first_rollout_ = 0;
  bool continues_ = false;  // what it found there are the run's own records
  Stopwatch since_start_;
  double time_offset_ = 0;                // seconds that a resumed run had behind it
  std::unique_ptr<Files> files_;          // null: nothing is recorded
  nlohmann::ordered_json last_row_ = {};  // of metrics.jsonl; null: there is none
};

}  // namespace miles
