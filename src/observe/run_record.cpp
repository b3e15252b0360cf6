#include "observe/run_record.h"

#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "observe/eval_metrics.h"
#include "observe/json_lines.h"

namespace miles {
namespace {

using Row = std::map<std::string, double>;

/// The rollouts' numbers by id. What is not a number is not a metric.
std::map<int64_t, Row> read_rows(const std::filesystem::path& path) {
  std::map<int64_t, Row> rows;
  int64_t number = 0;
  for (const nlohmann::ordered_json& line : read_json_lines(path)) {
    ++number;
    const auto id = line.find("rollout_id");
    if (id == line.end() || !id->is_number_integer())
      fail(ErrorCode::data,
           "{}:{}: expected an integer field rollout_id; delete that line to go on", path.string(),
           number);
    Row& row = rows[id->get<int64_t>()];
    for (const auto& [name, value] : line.items())
      if (value.is_number() && name != "rollout_id") row[name] = value.get<double>();
  }
  return rows;
}

/// A resumed run's clock starts again from 0; puts each part behind the one before it.
void make_times_ascend(std::vector<MemoryEvent>& events) {
  double offset = 0;
  double last = 0;
  for (MemoryEvent& event : events) {
    if (event.time + offset < last) offset = last - event.time + event.seconds;
    event.time += offset;
    last = event.time;
  }
}

}  // namespace

const std::vector<double>* RunRecord::find(const std::string& metric) const {
  const auto found = metrics.find(metric);
  return found == metrics.end() ? nullptr : &found->second;
}

std::vector<std::string> RunRecord::eval_scores() const {
  const std::string prefix = eval_reward_metric("");
  std::set<std::string> beside;
  for (const auto& [name, values] : metrics)
    if (name.starts_with(prefix)) beside.insert(eval_truncated_metric(name.substr(prefix.size())));
  std::vector<std::string> scores;
  for (const auto& [name, values] : metrics)
    if (name.starts_with(prefix) && !beside.contains(name)) scores.push_back(name);
  return scores;
}

RunRecord read_run(const std::filesystem::path& run_dir) {
  if (!std::filesystem::is_directory(run_dir))
    fail(ErrorCode::data, "{}: no such directory; give the directory of a run", run_dir.string());
  RunRecord run;
  run.name = std::filesystem::absolute(run_dir / "metrics.jsonl")
                 .lexically_normal()
                 .parent_path()
                 .filename();
  const auto has = [&](const char* file) { return std::filesystem::exists(run_dir / file); };
  if (has("config.toml")) run.config = read_file(run_dir / "config.toml");
  run.info = read_run_info(run_dir);
  if (has("memory.jsonl")) run.memory = read_memory_timeline(run_dir / "memory.jsonl");
  make_times_ascend(run.memory);
  if (!has("metrics.jsonl")) return run;

  const std::map<int64_t, Row> rows = read_rows(run_dir / "metrics.jsonl");
  for (const auto& [id, row] : rows) {
    for (const auto& [name, value] : row) {
      std::vector<double>& column = run.metrics[name];
      column.resize(rows.size(), std::numeric_limits<double>::quiet_NaN());
      column[run.rollout_ids.size()] = value;
    }
    run.rollout_ids.push_back(id);
  }
  return run;
}

}  // namespace miles
