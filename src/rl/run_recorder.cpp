#include "rl/run_recorder.h"

#include "base/file.h"
#include "observe/memory_timeline.h"
#include "observe/report.h"

namespace miles {

RunRecorder::RunRecorder(const std::filesystem::path& directory, int64_t first_rollout,
                         bool resumed)
    : directory_(directory) {
  if (directory.empty()) return;
  make_directories(directory);
  const auto mode = resumed ? JsonLines::Open::resume : JsonLines::Open::fresh;
  files_.reset(new Files{{directory / "metrics.jsonl", mode},
                         {directory / "memory.jsonl", mode},
                         {directory / "samples.jsonl", mode}});
  if (!resumed) return;
  for (JsonLines* file : {&files_->metrics, &files_->memory, &files_->samples})
    file->drop_from("rollout_id", first_rollout);
  const auto events = read_memory_timeline(directory / "memory.jsonl");
  if (!events.empty()) time_offset_ = events.back().time;
}

void RunRecorder::write_config(const std::string& toml) {
  if (files_) write_file_atomically(directory_ / "config.toml", toml);
}

void RunRecorder::handoff(const HandoffEvent& event, int64_t rollout_id,
                          const MemoryBudget& budget) {
  if (!files_) return;
  const auto limit = [](int64_t bytes) { return bytes == INT64_MAX ? 0 : bytes; };
  files_->memory.append(to_json(MemoryEvent{.event = event.name,
                                            .rollout_id = rollout_id,
                                            .seconds = event.seconds,
                                            .time = time_offset_ + since_start_.seconds(),
                                            .device_bytes = event.device.by_tag,
                                            .host_bytes = event.host.by_tag,
                                            .device_total = event.device.total,
                                            .host_total = event.host.total,
                                            .device_peak = event.device.event_peak,
                                            .host_peak = event.host.event_peak,
                                            .device_budget = limit(budget.device_bytes),
                                            .host_budget = limit(budget.host_bytes),
                                            .resident_set_bytes = resident_set_bytes()}));
}

void RunRecorder::samples(std::span<const Sample> samples, std::span<const float> advantages) {
  if (!files_) return;
  for (size_t i = 0; i < samples.size(); ++i) {
    auto line = to_json(samples[i]);
    if (!advantages.empty()) line["advantage"] = advantages[i];
    files_->samples.append(line);
  }
}

void RunRecorder::metrics(int64_t rollout_id, const Metrics& metrics) {
  if (files_) files_->metrics.append(metrics.to_json(rollout_id));
}

bool RunRecorder::write_report() {
  if (!files_) return false;
  miles::write_report(directory_);
  return true;
}

}  // namespace miles
