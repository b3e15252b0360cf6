#include "observe/memory_timeline.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "observe/json_lines.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

MemoryEvent example() {
  return {.event = "actor.onload",
          .rollout_id = 3,
          .seconds = 0.25,
          .time = 12.5,
          .device_bytes = {{"actor.params", 5LL << 32}, {"workspace", 7}},
          .host_bytes = {{"store.weights", 9}},
          .device_total = (5LL << 32) + 7,
          .host_total = 9,
          .device_peak = 6LL << 32,
          .host_peak = 10,
          .device_at_peak = {{"actor.params", 6LL << 32}},
          .host_at_peak = {{"store.weights", 10}},
          .copied_to_device = 13,
          .copied_to_host = 14,
          .device_budget = 8LL << 32,
          .host_budget = 11,
          .resident_set_bytes = 12};
}

TEST(MemoryTimeline, HasExactlyTheDocumentedFields) {
  std::vector<std::string> names;
  const nlohmann::ordered_json line = to_json(example());
  for (const auto& [name, value] : line.items()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"event", "rollout_id", "seconds", "time", "device",
                                             "host", "device_total", "host_total", "device_peak",
                                             "host_peak", "device_at_peak", "host_at_peak",
                                             "copied_to_device", "copied_to_host", "device_budget",
                                             "host_budget", "resident_set"}));
  EXPECT_EQ(line.at("device").dump(), R"({"actor.params":21474836480,"workspace":7})");
}

TEST(MemoryTimeline, ReadsBackWhatWasWritten) {
  const test::ScratchDir dir;
  JsonLines lines(dir / "memory.jsonl", JsonLines::Open::fresh);
  const MemoryEvent empty = {.event = "rollout.offload_kv"};
  lines.append(to_json(example()));
  lines.append(to_json(empty));
  EXPECT_EQ(read_memory_timeline(dir / "memory.jsonl"),
            (std::vector<MemoryEvent>{example(), empty}));
}

TEST(MemoryTimeline, ALineThatLacksAFieldIsRefusedNamingThePlace) {
  const test::ScratchDir dir;
  nlohmann::ordered_json line = to_json(example());
  line.erase("host_peak");
  write_file_atomically(dir / "memory.jsonl",
                        to_json(example()).dump() + "\n" + line.dump() + "\n");
  try {
    read_memory_timeline(dir / "memory.jsonl");
    FAIL() << "a missing field was accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("memory.jsonl:2"), std::string::npos) << message;
    EXPECT_NE(message.find("host_peak"), std::string::npos) << message;
  }
}

TEST(ResidentSet, GrowsWithMemoryThatIsTouched) {
  const int64_t before = resident_set_bytes();
  EXPECT_GT(before, 0);
  const std::vector<char> touched(32 << 20, 1);
  EXPECT_GT(resident_set_bytes(), before + (24 << 20)) << touched[0];
}

}  // namespace
}  // namespace miles
