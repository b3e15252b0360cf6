#include "rl/device_setup.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/fake_gpu.h"

namespace miles {
namespace {

using test::gpu24;
using test::kGiB;

TEST(Budget, LeftOutLeavesRoomForWhatTheDriverHolds) {
  const MemoryBudget budget = resolve_budget({}, gpu24(3 * kGiB));
  EXPECT_LT(budget.device_bytes, 21 * kGiB);
  EXPECT_GE(budget.device_bytes, 20 * kGiB);
  EXPECT_EQ(budget.host_bytes, host_capacity_bytes()) << "the host's, not the device's";
  EXPECT_EQ(resolve_budget({}, gpu24(24 * kGiB)).device_bytes, 0);
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
      resolve_budget({.gpu_memory_budget = 40 * kGiB, .host_memory_budget = 7}, gpu24(kGiB));
  EXPECT_EQ(budget.device_bytes, 40 * kGiB);
  EXPECT_EQ(budget.host_bytes, 7);
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

}  // namespace
}  // namespace miles
