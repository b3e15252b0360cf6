#include "model/batch.h"

#include <gtest/gtest.h>

namespace miles {
namespace {

TEST(HostBatch, KnowsItsLongestSequence) {
  HostBatch batch;
  EXPECT_EQ(batch.longest(), 0);
  batch.append_packed({1, 2, 3});
  EXPECT_EQ(batch.longest(), 3);
  batch.append_packed({4});
  EXPECT_EQ(batch.longest(), 3);
  batch.append_packed({5, 6, 7, 8, 9});
  EXPECT_EQ(batch.longest(), 5);
  const DeviceBatch device = to_device(batch, [](const auto&) { return Tensor(); });
  EXPECT_EQ(device.longest, 5);
}

}  // namespace
}  // namespace miles
