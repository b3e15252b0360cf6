#include "rl/run_recorder.h"

#include <gtest/gtest.h>

#include "observe/memory_timeline.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

TEST(RunRecorder, ShowsWhatTheDriverHoldsAsATagBesideTheLedger) {
  const test::ScratchDir dir;
  HandoffEvent event;
  event.name = "actor.onload";
  event.device.by_tag = {{"actor.params", 5}};
  event.device.total = event.device.event_peak = 5;
  event.device.at_event_peak = {{"actor.params", 2}, {"actor.activations", 3}};
  event.device.arrived = 3;
  event.host.arrived = 4;
  {
    RunRecorder recorder(dir.path(), {});
    recorder.handoff(event, 0, {});
    event.device_foreign = 700;
    recorder.handoff(event, 0, {});
    event.device_exchange = 40;
    recorder.handoff(event, 0, {});
  }
  const auto events = read_memory_timeline(dir / "memory.jsonl");
  ASSERT_EQ(events.size(), 3);
  using Tags = std::map<std::string, int64_t>;
  EXPECT_EQ(events[0].device_bytes, (Tags{{"actor.params", 5}}));
  EXPECT_EQ(events[1].device_bytes, (Tags{{"actor.params", 5}, {kDriverTag, 700}}));
  EXPECT_EQ(events[2].device_bytes,
            (Tags{{"actor.params", 5}, {kDriverTag, 700}, {kExchangeTag, 40}}));
  EXPECT_EQ(events[2].device_total, 5);
  EXPECT_EQ(events[1].device_total, 5);
  EXPECT_EQ(events[1].device_peak, 5);
  EXPECT_EQ(events[1].device_at_peak,
            (Tags{{"actor.activations", 3}, {"actor.params", 2}, {kDriverTag, 700}}));
  EXPECT_EQ(events[1].copied_to_device, 3);
  EXPECT_EQ(events[1].copied_to_host, 4);
}

}  // namespace
}  // namespace miles
