// The memory timeline: what each tag held after each event of the handoff, a line of memory.jsonl
// each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace miles {

/// What the device holds beside what the program took through its ledger: the driver's context,
/// libraries, graphs, other processes. A tag among the others, but in neither totals nor peaks,
/// which are those of the plan and the budget. With it and the next the tags add up to what the
/// driver reports.
inline constexpr const char* kDriverTag = "driver";
/// What one side has given up during a handoff and no other has taken yet. In no total or peak.
inline constexpr const char* kExchangeTag = "exchange";

/// Bytes are those held when the event ended.
struct MemoryEvent {
  std::string event = {};  // "actor.onload"
  int64_t rollout_id = 0;  // rollout in which it happened
  double seconds = 0;      // how long it took
  double time = 0;         // when it ended, seconds since the start of the run
  std::map<std::string, int64_t> device_bytes = {};  // by tag; tags that hold nothing may be absent
  std::map<std::string, int64_t> host_bytes = {};    // by tag
  int64_t device_total = 0;                          // bytes, all tags but these two
  int64_t host_total = 0;                            // bytes, all tags
  int64_t device_peak = 0;  // bytes, largest device total since the previous event
  int64_t host_peak = 0;    // bytes, largest host total since the previous event
  std::map<std::string, int64_t> device_at_peak = {};  // by tag, when device_peak was reached
  std::map<std::string, int64_t> host_at_peak = {};    // by tag, when host_peak was reached
  int64_t copied_to_device = 0;                        // bytes that came from the host
  int64_t copied_to_host = 0;                          // bytes that came from the device
  int64_t device_budget = 0;                           // bytes; 0: no limit
  int64_t host_budget = 0;                             // bytes; 0: no limit
  int64_t resident_set_bytes = 0;  // of the whole process, as the kernel counts it
  bool operator==(const MemoryEvent&) const = default;
};

/// A line of memory.jsonl: fields event, rollout_id, seconds, time, device {tag: bytes}, host {tag:
/// bytes}, device_total, host_total, device_peak, host_peak, device_at_peak {tag: bytes},
/// host_at_peak {tag: bytes}, copied_to_device, copied_to_host, device_budget, host_budget,
/// resident_set.
nlohmann::ordered_json to_json(const MemoryEvent& event);

/// Reads memory.jsonl; a torn last line is skipped. Throws Error{data} naming path, line and field.
std::vector<MemoryEvent> read_memory_timeline(const std::filesystem::path& path);

/// Bytes of this process in physical memory (second field of /proc/self/statm); 0 where that is
/// absent.
int64_t resident_set_bytes();

}  // namespace miles
