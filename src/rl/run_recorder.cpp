#include "rl/run_recorder.h"

#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "observe/memory_timeline.h"
#include "observe/report.h"

namespace miles {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEarlierConfig = "config-before-rollout-";

/// The files of a run, metrics.jsonl last: until it has moved, a start after a kill moves the rest.
std::vector<std::string> record_names(const fs::path& directory) {
  std::vector<std::string> names = {"memory.jsonl", "samples.jsonl", "config.toml", "run.json",
                                    "report.html"};
  for (const auto& entry : fs::directory_iterator(directory))
    if (std::string name = entry.path().filename().string(); name.starts_with(kEarlierConfig))
      names.push_back(std::move(name));
  names.emplace_back("metrics.jsonl");
  return names;
}

/// Records of a run that has come to a first rollout are somebody's: they step aside.
void set_aside(const fs::path& directory) {
  std::error_code error;
  const auto size = fs::file_size(directory / "metrics.jsonl", error);
  if (error || size == 0) return;
  fs::path aside;
  for (int n = 1; aside.empty() || fs::exists(aside); ++n)
    aside = directory / fmt::format("previous-{}", n);
  make_directories(aside);
  for (const std::string& name : record_names(directory)) {
    if (!fs::exists(directory / name)) continue;
    fs::rename(directory / name, aside / name, error);
    if (error)
      fail(ErrorCode::data, "{}: cannot move to {}: {}; pass another --run-dir",
           (directory / name).string(), aside.string(), error.message());
  }
  log::info("--run-dir {}: the records of another run, which were there, are in {} now",
            directory.string(), aside.filename().string());
}

/// What a config says, without its comments.
std::string settings_of(const std::string& toml) {
  std::string settings;
  std::istringstream lines(toml);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && !line.starts_with('#')) settings += line + '\n';
  return settings;
}

bool is_row_of(const nlohmann::ordered_json& row, int64_t rollout_id) {
  return row.is_object() && row.value("rollout_id", rollout_id - 1) == rollout_id;
}

}  // namespace

RunRecorder::RunRecorder(const std::filesystem::path& directory, const RecordStart& start)
    : directory_(directory), first_rollout_(start.first_rollout) {
  if (directory.empty()) return;
  make_directories(directory);
  continues_ = start.resumed && read_run_info(directory).run_id == start.run.run_id;
  if (!continues_) set_aside(directory);
  const auto mode = continues_ ? JsonLines::Open::resume : JsonLines::Open::fresh;
  files_.reset(new Files{{directory / "metrics.jsonl", mode},
                         {directory / "memory.jsonl", mode},
                         {directory / "samples.jsonl", mode}});
  write_run_info(directory, start.run);
  if (!continues_) return;
  for (JsonLines* file : {&files_->metrics, &files_->memory, &files_->samples})
    file->drop_from("rollout_id", start.first_rollout);
  const auto events = read_memory_timeline(directory / "memory.jsonl");
  if (!events.empty()) time_offset_ = events.back().time;
  const auto rows = read_json_lines(directory / "metrics.jsonl");
  if (!rows.empty()) last_row_ = rows.back();
}

void RunRecorder::write_config(const std::string& toml) {
  if (!files_) return;
  const fs::path path = directory_ / "config.toml";
  if (continues_ && fs::exists(path)) {
    if (settings_of(read_file(path)) == settings_of(toml)) return;
    const std::string earlier = fmt::format("{}{}.toml", kEarlierConfig, first_rollout_);
    // One that is there already is what the rollouts before ran with.
    if (!fs::exists(directory_ / earlier))
      write_file_atomically(directory_ / earlier, read_file(path));
    log::info("--run-dir {}: config.toml has this run's flags; those of before are in {}",
              directory_.string(), earlier);
  }
  write_file_atomically(path, toml);
}

void RunRecorder::handoff(const HandoffEvent& event, int64_t rollout_id,
                          const MemoryBudget& budget) {
  if (!files_) return;
  auto device = event.device.by_tag, device_at_peak = event.device.at_event_peak;
  if (event.device_foreign > 0)
    device[kDriverTag] = device_at_peak[kDriverTag] = event.device_foreign;
  if (event.device_exchange > 0) device[kExchangeTag] = event.device_exchange;
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
                                            .device_at_peak = std::move(device_at_peak),
                                            .host_at_peak = event.host.at_event_peak,
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
  auto row = metrics.to_json(rollout_id);
  if (files_) files_->metrics.append(row);
  last_row_ = std::move(row);  // on record from here on
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
