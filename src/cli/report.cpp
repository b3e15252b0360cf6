#include "observe/report.h"

#include <cmath>
#include <filesystem>
#include <iostream>

#include "base/units.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "observe/memory_timeline.h"
#include "observe/run_record.h"
#include "observe/text_chart.h"

namespace miles {
namespace {

namespace fs = std::filesystem;

void print_rewards(const RunRecord& run) {
  std::vector<double> rewards;
  std::vector<std::vector<std::string>> evals;
  const std::vector<double>* const raw = run.find("rollout/raw_reward");
  const std::vector<std::string> scores = run.eval_scores();
  for (size_t i = 0; i < run.rollout_ids.size(); ++i) {
    if (raw != nullptr && !std::isnan((*raw)[i])) rewards.push_back((*raw)[i]);
    for (const std::string& name : scores)
      if (const double value = (*run.find(name))[i]; !std::isnan(value))
        evals.push_back(
            {name, std::to_string(run.rollout_ids[i] + 1), fmt::format("{:.3f}", value)});
  }
  std::cout << text_chart(
                   rewards,
                   {.title = "rollout/raw_reward", .y_min = 0.0, .y_max = {}, .x_label = "rollout"})
            << '\n';
  if (!evals.empty())
    std::cout << text_table({"evaluation", "after rollouts", "reward"}, evals) << '\n';
}

/// "NAME=RUN_DIR": what one run's device and host held at most.
std::vector<std::string> peaks_of(const std::string& item) {
  const size_t equals = item.find('=');
  if (equals == std::string::npos) fail(ErrorCode::flags, "--compare {}: write NAME=RUN_DIR", item);
  int64_t device = 0, host = 0;
  for (const MemoryEvent& event :
       read_memory_timeline(fs::path(item.substr(equals + 1)) / "memory.jsonl")) {
    device = std::max(device, event.device_peak);
    host = std::max(host, event.host_peak);
  }
  return {item.substr(0, equals), format_bytes(device), format_bytes(host)};
}

}  // namespace

int report_command(int argc, const char* const* argv) {
  CommandLine line("report", "Writes a run's report.html again and shows its curve.");
  std::string run;
  std::vector<std::string> compare;
  line.app().add_option("RUN_DIR", run, "directory of a run")->required();
  line.texts("--compare", compare, "a table of memory peaks of several runs")
      ->type_name("NAME=RUN_DIR");
  if (!line.parse(argc, argv)) return 0;
  if (!fs::exists(fs::path(run) / "metrics.jsonl"))
    fail(ErrorCode::data, "{}: no metrics.jsonl; pass the --run-dir of a run", run);
  std::vector<std::vector<std::string>> peaks;  // before anything is written
  for (const std::string& item : compare) peaks.push_back(peaks_of(item));
  write_report(run);
  print_rewards(read_run(run));
  if (!peaks.empty())
    std::cout << text_table({"memory mode", "device peak", "host peak"}, peaks) << '\n';
  std::cout << "report: " << (fs::path(run) / "report.html").string() << '\n';
  return 0;
}

}  // namespace miles
