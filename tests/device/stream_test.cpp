#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "device/device.h"

namespace miles {
namespace {

TEST(Streams, AnEventOrdersTwoStreams) {
  const auto device = make_cpu_device();
  const auto first = device->make_stream(StreamUse::copy_to_device);
  const auto second = device->make_stream(StreamUse::copy_to_host);
  std::vector<int> source(1 << 20, 7), middle(1 << 20), target(1 << 20);
  const auto bytes = static_cast<int64_t>(source.size() * sizeof(int));
  for (int round = 0; round < 10; ++round) {
    first->copy(middle.data(), source.data(), bytes);
    second->wait(first->record());
    second->copy(target.data(), middle.data(), bytes);
    const Event done = second->record();
    done.synchronize();
    EXPECT_TRUE(done.done());
    EXPECT_EQ(target, source);
    // The next round's first copy overwrites `middle` only after the second stream has read it.
    first->wait(done);
    std::fill(source.begin(), source.end(), round);
  }
}

TEST(Streams, ADefaultEventIsInThePast) {
  const Event event;
  EXPECT_TRUE(event.done());
  event.synchronize();
}

int64_t resident_pages() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident;
}

TEST(CpuMemory, DecommitGivesPhysicalMemoryBack) {
  const auto device = make_cpu_device();
  AddressSpace& memory = device->memory();
  constexpr int64_t kBytes = 64 << 20;
  std::byte* base = memory.reserve(kBytes);
  memory.commit(base, kBytes);
  for (int64_t i = 0; i < kBytes; i += 4096) base[i] = std::byte{1};
  const int64_t with = resident_pages();
  memory.decommit(base, kBytes);
  EXPECT_LT(resident_pages(), with - (kBytes / 4096) * 9 / 10);
  EXPECT_DEATH(base[0] = std::byte{2}, "");
  memory.unreserve(base, kBytes);
}

}  // namespace
}  // namespace miles
