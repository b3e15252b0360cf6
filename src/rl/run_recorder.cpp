#include "rl/run_recorder.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "observe/memory_timeline.h"
#include "observe/report.h"

namespace miles {
namespace {

namespace fs = std::filesystem;

/// Records of a run that has come to a first rollout are somebody's: they step aside.
void set_aside(const fs::path& directory) {
  std::error_code error;
  const auto size = fs::file_size(directory / "metrics.jsonl", error);
  if (error || size == 0) return;
  fs::path aside;
  for (int n = 1; aside.empty() || fs::exists(aside); ++n)
    aside = directory / fmt::format("previous-{}", n);
  make_directories(aside);
  // metrics.jsonl last: until it has moved, a start after a kill moves the rest.
  for (const char* name :
       {"memory.jsonl", "samples.jsonl", "config.toml", "report.html", "metrics.jsonl"}) {
    if (!fs::exists(directory / name)) continue;
    fs::rename(directory / name, aside / name, error);
    if (error)
      fail(ErrorCode::data, "{}: cannot move to {}: {}; pass another --run-dir",
           (directory / name).string(), aside.string(), error.message());
  }
  log::info("--run-dir {}: the records of the run before are in {} now", directory.string(),
            aside.filename().string());
}

bool is_row_of(const nlohmann::ordered_json& row, int64_t rollout_id) {
  return row.is_object() && row.value("rollout_id", rollout_id - 1) == rollout_id;
}

}  // namespace

RunRecorder::RunRecorder(const std::filesystem::path& directory, int64_t first_rollout,
                         bool resumed)
    : directory_(directory) {
  if (directory.empty()) return;
  make_directories(directory);
  if (!resumed) set_aside(directory);
  const auto mode = resumed ? JsonLines::Open::resume : JsonLines::Open::fresh;
  files_.reset(new Files{{directory / "metrics.jsonl", mode},
                         {directory / "memory.jsonl", mode},
                         {directory / "samples.jsonl", mode}});
  if (!resumed) return;
  for (JsonLines* file : {&files_->metrics, &files_->memory, &files_->samples})
    file->drop_from("rollout_id", first_rollout);
  const auto events = read_memory_timeline(directory / "memory.jsonl");
  if (!events.empty()) time_offset_ = events.back().time;
  const auto rows = read_json_lines(directory / "metrics.jsonl");
  if (!rows.empty()) last_row_ = rows.back();
}

void RunRecorder::write_config(const std::string& toml) {
  if (files_) write_file_atomically(directory_ / "config.toml", toml);
}

void RunRecorder::handoff(const HandoffEvent& event, int64_t rollout_id,
                          const MemoryBudget& budget) {
  if (!files_) return;
  auto device = event.device.by_tag;
  if (event.device_foreign > 0) device[kDriverTag] = event.device_foreign;
  const auto limit = [](int64_t bytes) { return bytes == INT64_MAX ? 0 : bytes; };
  files_->memory.append(to_json(MemoryEvent{.event = event.name,
                                            .rollout_id = rollout_id,
                                            .seconds = event.seconds,
                                            .time = time_offset_ + since_start_.seconds(),
                                            .device_bytes = std::move(device),
                                            .host_bytes = event.host.by_tag,
                                            .device_total = event.device.total,
                                            .host_total = event.host.total,
                                            .device_peak = event.device.event_peak,
                                            .host_peak = event.host.event_peak,
                                            .copied_to_device = event.device.arrived,
                                            .copied_to_host = event.host.arrived,
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
  last_row_ = metrics.to_json(rollout_id);
  if (files_) files_->metrics.append(last_row_);
}

void RunRecorder::evaluation(int64_t rollout_id, const Metrics& metrics) {
  if (!is_row_of(last_row_, rollout_id)) return this->metrics(rollout_id, metrics);
  last_row_.update(metrics.to_json(rollout_id));
  if (files_) files_->metrics.replace_last(last_row_);
}

bool RunRecorder::has(int64_t rollout_id, const std::string& metric) const {
  return is_row_of(last_row_, rollout_id) && last_row_.contains(metric);
}

void RunRecorder::forget_unfinished(int64_t rollout_id) {
  if (files_ && !is_row_of(last_row_, rollout_id))
    files_->samples.drop_from("rollout_id", rollout_id);
}

void RunRecorder::sync() {
  if (!files_) return;
  for (JsonLines* file : {&files_->metrics, &files_->memory, &files_->samples}) file->sync();
}

bool RunRecorder::write_report() {
  if (!files_) return false;
  miles::write_report(directory_);
  return true;
}

}  // namespace miles
