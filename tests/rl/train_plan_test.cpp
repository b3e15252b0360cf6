#include "rl/train_plan.h"

#include <gtest/gtest.h>

#include "rl/device_setup.h"
#include "tests/support/fake_gpu.h"

namespace miles {
namespace {

using test::gpu24;
using test::kGiB;

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
    EXPECT_EQ(room(config, least, gpu24(kGiB)), kGiB / 2);
    EXPECT_EQ(room(config, least, *cpu), kGiB / 2);
  }
}

TEST(RoomToFill, IsWhatIsTakenAnywayWhereNobodySpokeOfMore) {
  const auto cpu = make_cpu_device();
  const MemoryPlan least = least_plan(kGiB, kGiB);
  EXPECT_EQ(room(config_of({}, {}), least, *cpu), kGiB);
  EXPECT_EQ(room(config_of({}, kStreamed), least, *cpu), kGiB);
  EXPECT_EQ(room(config_of({}, kStreamed), least, gpu24(kGiB)), kGiB);
}

TEST(RoomToFill, IsMostOfAGpuThatTheTrainerStaysOn) {
  for (const HandoffOptions& handoff :
       {HandoffOptions{}, HandoffOptions{.offload_train = true, .offload_rollout = true}}) {
    const int64_t bytes = room(config_of({}, handoff), least_plan(kGiB, kGiB), gpu24(4 * kGiB));
    EXPECT_GT(bytes, 17 * kGiB);
    EXPECT_LT(bytes, 18 * kGiB);
  }
  // Where little is free, what is taken anyway is still allowed.
  EXPECT_EQ(room(config_of({}, {}), least_plan(7 * kGiB, 0), gpu24(16 * kGiB)), 7 * kGiB);
}

TEST(RoomToFill, EndsWhereTheDeviceDoes) {
  // The driver takes more when it is used.
  EXPECT_EQ(room(config_of(40 * kGiB, {}), least_plan(kGiB, kGiB), gpu24(3 * kGiB)),
            21 * kGiB - kGiB / 2);
  // On the CPU both memories are one.
  const auto cpu = make_cpu_device();
  EXPECT_EQ(room(config_of(host_capacity_bytes(), {}), least_plan(kGiB, 3 * kGiB / 2), *cpu),
            host_capacity_bytes() - 3 * kGiB / 2);
}

}  // namespace
}  // namespace miles
