#include "rl/train_setup.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "observe/memory_timeline.h"
#include "rl/run_recorder.h"
#include "tests/support/shared.h"

namespace miles {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// As much of a GPU as a budget asks for.
class Gpu24 : public Device {
 public:
  explicit Gpu24(int64_t foreign) : foreign_(foreign) {}
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return "GPU of 24 GiB"; }
  int64_t capacity_bytes() const override { return 24 * kGiB; }
  int64_t foreign_bytes() const override { return foreign_; }
  AddressSpace& memory() override { std::abort(); }
  AddressSpace& host_memory() override { std::abort(); }
  std::unique_ptr<Stream> make_stream(StreamUse) override { std::abort(); }

 private:
  int64_t foreign_;  // bytes
};

TEST(Budget, LeftOutLeavesRoomForWhatTheDriverHolds) {
  const MemoryBudget budget = resolve_budget({}, Gpu24(3 * kGiB));
  EXPECT_LT(budget.device_bytes, 21 * kGiB);
  EXPECT_GE(budget.device_bytes, 20 * kGiB);
  EXPECT_EQ(budget.host_bytes, host_capacity_bytes()) << "the host's, not the device's";
  EXPECT_EQ(resolve_budget({}, Gpu24(24 * kGiB)).device_bytes, 0);
}

TEST(Budget, OnTheCpuIsTheMachine) {
  const auto device = make_cpu_device();
  const MemoryBudget budget = resolve_budget({}, *device);
  EXPECT_EQ(budget.device_bytes, host_capacity_bytes());
  EXPECT_EQ(budget.host_bytes, host_capacity_bytes());
}

TEST(Budget, OnTheCpuIsAtMostTheMachine) {
  const auto device = make_cpu_device();
  const int64_t all = host_capacity_bytes();
  const MemoryBudget budget =
      resolve_budget({.gpu_memory_budget = all, .host_memory_budget = all}, *device);
  EXPECT_EQ(budget.device_bytes, all);
  EXPECT_EQ(budget.host_bytes, all);
  const auto refused = [&](const DeviceConfig& config, const std::string& flag) {
    try {
      resolve_budget(config, *device);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::flags);
      EXPECT_NE(std::string(error.what()).find(flag), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(std::to_string(all)), std::string::npos);
    }
  };
  refused({.gpu_memory_budget = all + 1, .host_memory_budget = {}}, "--gpu-memory-budget");
  refused({.gpu_memory_budget = {}, .host_memory_budget = all + 1}, "--host-memory-budget");
}

TEST(Budget, IsWhatTheFlagsSay) {
  const MemoryBudget budget =
      resolve_budget({.gpu_memory_budget = 40 * kGiB, .host_memory_budget = 7}, Gpu24(kGiB));
  EXPECT_EQ(budget.device_bytes, 40 * kGiB);
  EXPECT_EQ(budget.host_bytes, 7);
}

TEST(Budget, ThatIsMoreThanThereIsDoesNotHelp) {
  MemoryPlan plan;
  plan.device_peak = 22 * kGiB;
  EXPECT_NO_THROW(check_device_has(plan, Gpu24(3 * kGiB / 2)));  // and half a GiB for the driver
  try {
    check_device_has(plan, Gpu24(3 * kGiB / 2 + 1));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::budget);
    EXPECT_NE(std::string(error.what()).find("22.0 GiB"), std::string::npos) << error.what();
  }
}

TEST(Engine, WhatIsLeftOutSuitsTheDeviceAndTheNumberOfRequests) {
  const EngineOptions cpu = resolve_engine({}, DeviceKind::cpu, 100, 1000);
  EXPECT_EQ(cpu.max_running_requests, 64);
  EXPECT_EQ(cpu.chunked_prefill_size, 512);
  EXPECT_EQ(cpu.max_total_tokens, 64 * 7 * 16) << "a whole sample each, in pages of 16";
  const EngineOptions gpu = resolve_engine({}, DeviceKind::cuda, 100, 1000);
  EXPECT_EQ(gpu.max_running_requests, 256);
  EXPECT_EQ(gpu.chunked_prefill_size, 4096);
  EXPECT_EQ(resolve_engine({}, DeviceKind::cuda, 100, 8).max_running_requests, 8);
  EXPECT_EQ(resolve_engine({}, DeviceKind::cpu, 100, 8).max_running_requests, 8);
}

TEST(Engine, WhatIsGivenIsTaken) {
  EngineConfig config;
  config.max_running_requests = 300;
  config.chunked_prefill_size = 100;
  config.max_total_tokens = 1000;
  const EngineOptions options = resolve_engine(config, DeviceKind::cuda, 1000, 8);
  EXPECT_EQ(options.max_running_requests, 300);
  EXPECT_EQ(options.chunked_prefill_size, 100);
  EXPECT_EQ(options.max_total_tokens, 1000);
  EXPECT_THROW(resolve_engine(config, DeviceKind::cuda, 1001, 8), Error);
}

/// A plan that keeps no activations.
MemoryPlan least_plan(int64_t device_peak, int64_t host_peak) {
  MemoryPlan plan;
  plan.device_peak = device_peak;
  plan.host_peak = host_peak;
  plan.recomputed_blocks = plan.blocks = 4;
  return plan;
}

TrainConfig config_of(std::optional<int64_t> gpu_memory_budget, const HandoffOptions& handoff) {
  TrainConfig config;
  config.device.gpu_memory_budget = gpu_memory_budget;
  config.colocate.handoff = handoff;
  return config;
}

const HandoffOptions kStreamed{
    .offload_train = true, .offload_rollout = true, .peak_device = PeakDevice::gpu};

int64_t room(const TrainConfig& config, const MemoryPlan& least, const Device& device) {
  return room_to_fill(config, least, resolve_budget(config.device, device), device);
}

TEST(RoomToFill, IsTheBudgetWhereOneIsGiven) {
  const auto cpu = make_cpu_device();
  const MemoryPlan least = least_plan(kGiB / 4, kGiB / 8);
  for (const HandoffOptions& handoff : {HandoffOptions{}, kStreamed}) {
    const TrainConfig config = config_of(kGiB / 2, handoff);
    EXPECT_EQ(room(config, least, Gpu24(kGiB)), kGiB / 2);
    EXPECT_EQ(room(config, least, *cpu), kGiB / 2);
  }
}

TEST(RoomToFill, IsWhatIsTakenAnywayWhereNobodySpokeOfMore) {
  const auto cpu = make_cpu_device();
  const MemoryPlan least = least_plan(kGiB, kGiB);
  EXPECT_EQ(room(config_of({}, {}), least, *cpu), kGiB);
  EXPECT_EQ(room(config_of({}, kStreamed), least, *cpu), kGiB);
  EXPECT_EQ(room(config_of({}, kStreamed), least, Gpu24(kGiB)), kGiB);
}

TEST(RoomToFill, IsMostOfAGpuThatTheTrainerStaysOn) {
  for (const HandoffOptions& handoff :
       {HandoffOptions{}, HandoffOptions{.offload_train = true, .offload_rollout = true}}) {
    const int64_t bytes = room(config_of({}, handoff), least_plan(kGiB, kGiB), Gpu24(4 * kGiB));
    EXPECT_GT(bytes, 17 * kGiB);
    EXPECT_LT(bytes, 18 * kGiB);
  }
  // Where little is free, what is taken anyway is still allowed.
  EXPECT_EQ(room(config_of({}, {}), least_plan(7 * kGiB, 0), Gpu24(16 * kGiB)), 7 * kGiB);
}

TEST(RoomToFill, EndsWhereTheDeviceDoes) {
  // The driver takes more when it is used.
  EXPECT_EQ(room(config_of(40 * kGiB, {}), least_plan(kGiB, kGiB), Gpu24(3 * kGiB)),
            21 * kGiB - kGiB / 2);
  // On the CPU both memories are one.
  const auto cpu = make_cpu_device();
  EXPECT_EQ(room(config_of(host_capacity_bytes(), {}), least_plan(kGiB, 3 * kGiB / 2), *cpu),
            host_capacity_bytes() - 3 * kGiB / 2);
}

TEST(Budget, ThatIsMoreThanThereIsIsRefusedWithAWordOnRecomputing) {
  MemoryPlan plan = least_plan(0, 0);
  plan.recomputed_blocks = 1;
  HandoffEvent event;
  event.device.event_peak = 23 * kGiB;
  event.device.at_event_peak = {{"actor.params", 20 * kGiB}, {"actor.activations", 3 * kGiB}};
  plan.add(event);
  try {
    check_device_has(plan, Gpu24(2 * kGiB));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("raise --recompute-num-layers (it is 1"),
              std::string::npos)
        << error.what();
  }
}

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
