#include "observe/memory_timeline.h"

#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "observe/json_lines.h"

namespace miles {
namespace {

MemoryEvent event_of(const nlohmann::ordered_json& line) {
  return {
      .event = line.at("event"),
      .rollout_id = line.at("rollout_id"),
      .seconds = line.at("seconds"),
      .time = line.at("time"),
      .device_bytes = line.at("device").get<std::map<std::string, int64_t>>(),
      .host_bytes = line.at("host").get<std::map<std::string, int64_t>>(),
      .device_total = line.at("device_total"),
      .host_total = line.at("host_total"),
      .device_peak = line.at("device_peak"),
      .host_peak = line.at("host_peak"),
      .device_at_peak = line.at("device_at_peak").get<std::map<std::string, int64_t>>(),
      .host_at_peak = line.at("host_at_peak").get<std::map<std::string, int64_t>>(),
      .copied_to_device = line.at("copied_to_device"),
      .copied_to_host = line.at("copied_to_host"),
      .device_budget = line.at("device_budget"),
      .host_budget = line.at("host_budget"),
      .resident_set_bytes = line.at("resident_set"),
  };
}

}  // namespace

nlohmann::ordered_json to_json(const MemoryEvent& event) {
  return {
      {"event", event.event},
      {"rollout_id", event.rollout_id},
      {"seconds", event.seconds},
      {"time", event.time},
      {"device", event.device_bytes},
      {"host", event.host_bytes},
      {"device_total", event.device_total},
      {"host_total", event.host_total},
      {"device_peak", event.device_peak},
      {"host_peak", event.host_peak},
      {"device_at_peak", event.device_at_peak},
      {"host_at_peak", event.host_at_peak},
      {"copied_to_device", event.copied_to_device},
      {"copied_to_host", event.copied_to_host},
      {"device_budget", event.device_budget},
      {"host_budget", event.host_budget},
      {"resident_set", event.resident_set_bytes},
  };
}

std::vector<MemoryEvent> read_memory_timeline(const std::filesystem::path& path) {
  std::vector<MemoryEvent> events;
  for (const nlohmann::ordered_json& line : read_json_lines(path)) {
    try {
      events.push_back(event_of(line));
    } catch (const nlohmann::json::exception& error) {
      fail(ErrorCode::data, "{}:{}: not a memory event: {}", path.string(), events.size() + 1,
           error.what());
    }
  }
  return events;
}

int64_t resident_set_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t mapped_pages = 0;
  int64_t resident_pages = 0;
  if (!(statm >> mapped_pages >> resident_pages)) return 0;
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

}  // namespace miles
