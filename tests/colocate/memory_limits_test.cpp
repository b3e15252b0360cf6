#include "colocate/memory_limits.h"

#include <gtest/gtest.h>

#include "tests/support/fake_gpu.h"

namespace miles {
namespace {

using test::FakeGpu;
using test::kGiB;

TEST(Shortage, OfWhatIsThereComesBeforeThatOfABudget) {
  MemoryPlan plan;
  plan.device_peak = 22 * kGiB;
  // Half a GiB is left to the driver.
  EXPECT_FALSE(shortage(plan, {}, FakeGpu(24 * kGiB, 3 * kGiB / 2)));
  const auto lack = shortage(plan, {.device_bytes = kGiB}, FakeGpu(24 * kGiB, 3 * kGiB / 2 + 1));
  ASSERT_TRUE(lack);
  EXPECT_EQ(lack->place, Place::device);
  EXPECT_EQ(lack->bytes, 1);
  EXPECT_NE(lack->text.find("needs 22.0 GiB"), std::string::npos) << lack->text;
  EXPECT_NE(lack->text.find("hold 1.5 GiB"), std::string::npos) << lack->text;
}

TEST(Shortage, OnTheCpuIsOfBothSidesTogether) {
  const auto cpu = make_cpu_device();
  MemoryPlan plan;
  plan.host_peak = plan.device_peak = cpu->capacity_bytes() / 2;
  EXPECT_FALSE(shortage(plan, {}, *cpu));
  plan.host_peak += 2;
  EXPECT_TRUE(shortage(plan, {}, *cpu));
}

TEST(Shortage, OfABudgetNamesItsPlaceAndWhatTakesMost) {
  MemoryPlan plan;
  HandoffEvent event;
  event.device.event_peak = 5;
  event.host.event_peak = 3;
  event.host.at_event_peak = {{"store.params", 2}, {"store.grads", 1}};
  plan.add(event);
  const FakeGpu gpu(24 * kGiB);
  EXPECT_FALSE(shortage(plan, {.device_bytes = 5, .host_bytes = 3}, gpu));
  EXPECT_EQ(shortage(plan, {.device_bytes = 4, .host_bytes = 3}, gpu)->place, Place::device);
  const auto host = shortage(plan, {.device_bytes = 5, .host_bytes = 1}, gpu);
  ASSERT_TRUE(host);
  EXPECT_EQ(host->place, Place::host);
  EXPECT_EQ(host->bytes, 2);
  EXPECT_EQ(
      does_not_fit(*host),
      "does not fit: the run needs 3 B (3 bytes) of host memory, the budget is 1 B (1 bytes); "
      "largest: store.params 2 B, store.grads 1 B");
}

}  // namespace
}  // namespace miles
