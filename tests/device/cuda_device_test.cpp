#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "device/device.h"

namespace miles {
namespace {

/// Where there is no GPU, tests say so and skip.
class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device here";
    device_ = make_cuda_device();
    stream_ = device_->make_stream(StreamUse::compute);
  }
  std::vector<uint8_t> read(const std::byte* from, int64_t bytes) {
    std::vector<uint8_t> values(static_cast<size_t>(bytes));
    stream_->copy(values.data(), from, bytes);
    stream_->synchronize();
    return values;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaDevice, AnAddressOutlivesTheMemoryBehindIt) {
  AddressSpace& memory = device_->memory();
  // More than a chunk of 256 MiB, and not a multiple of one.
  const int64_t bytes = (int64_t{300} << 20) / memory.granularity() * memory.granularity();
  std::byte* const base = memory.reserve(bytes);
  for (uint8_t round = 1; round <= 3; ++round) {
    memory.commit(base, bytes);
    const std::vector<uint8_t> ones(1 << 20, round);
    for (const int64_t at : {int64_t{0}, (int64_t{256} << 20) - (1 << 19), bytes - (1 << 20)}) {
      stream_->copy(base + at, ones.data(), 1 << 20);
      EXPECT_EQ(read(base + at, 1 << 20), ones);
    }
    memory.decommit(base, bytes);
  }
  memory.unreserve(base, bytes);
}

/// What the driver says is free.
int64_t free_bytes() {
  const auto device = make_cuda_device();
  return device->capacity_bytes() - device->foreign_bytes();
}

TEST_F(CudaDevice, DecommitGivesBackEveryByte) {
  AddressSpace& memory = device_->memory();
  const int64_t bytes = (int64_t{1} << 30) / memory.granularity() * memory.granularity();
  std::byte* const base = memory.reserve(bytes);
  memory.commit(base, bytes);
  memory.decommit(base, bytes);
  const int64_t free = free_bytes();
  for (int round = 0; round < 5; ++round) {
    memory.commit(base, bytes);
    EXPECT_EQ(free_bytes(), free - bytes);
    memory.decommit(base, bytes);
    EXPECT_EQ(free_bytes(), free);
  }
  memory.unreserve(base, bytes);
}

TEST_F(CudaDevice, AnExchangeTakesNoMoreThanWasThere) {
  AddressSpace& memory = device_->memory();
  const int64_t unit = memory.granularity();
  const auto size = [&](int64_t mebibytes) { return (mebibytes << 20) / unit * unit; };
  // Whole chunks and a part of one; parts of others.
  const int64_t bytes = size(700), others = size(900);
  std::byte* const base = memory.reserve(bytes);
  std::byte* const other = memory.reserve(others);
  memory.commit(base, bytes);
  memory.decommit(base, bytes);
  const int64_t free = free_bytes();
  const int64_t foreign = device_->foreign_bytes();
  memory.commit(base, bytes);
  memory.begin_exchange();
  memory.decommit(base, bytes);
  EXPECT_EQ(free_bytes(), free - bytes) << "it is for the next to take";
  EXPECT_EQ(device_->foreign_bytes(), foreign);
  memory.commit(other, size(600));
  EXPECT_EQ(free_bytes(), free - size(600));
  memory.decommit(other, size(600));
  EXPECT_EQ(free_bytes(), free - size(600));
  memory.commit(other, others);
  EXPECT_EQ(free_bytes(), free - others);
  const std::vector<uint8_t> pattern(1 << 20, 7);
  for (const int64_t at : {int64_t{0}, others - (1 << 20)}) {
    stream_->copy(other + at, pattern.data(), 1 << 20);
    EXPECT_EQ(read(other + at, 1 << 20), pattern);
  }
  // What cannot be had leaves what was there, and that goes at the end.
  memory.decommit(other, others);
  EXPECT_EQ(device_->exchange_bytes(), others);
  const int64_t too_much = size(1 << 20);  // a tebibyte
  std::byte* const huge = memory.reserve(too_much);
  EXPECT_THROW(memory.commit(huge, too_much), Error);
  memory.end_exchange();
  EXPECT_EQ(device_->exchange_bytes(), 0);
  EXPECT_EQ(free_bytes(), free);
  EXPECT_EQ(device_->foreign_bytes(), foreign);
  memory.commit(base, bytes);
  memory.decommit(base, bytes);
  EXPECT_EQ(free_bytes(), free) << "the exchange is over";
  memory.unreserve(huge, too_much);
  memory.unreserve(base, bytes);
  memory.unreserve(other, others);
}

TEST_F(CudaDevice, WhatItHoldsForItselfIsToldApartFromWhatWeTook) {
  AddressSpace& memory = device_->memory();
  const int64_t bytes = (int64_t{300} << 20) / memory.granularity() * memory.granularity();
  std::byte* const base = memory.reserve(bytes);
  const int64_t before = device_->foreign_bytes();
  EXPECT_GT(before, 0) << "a context takes something";
  EXPECT_LT(before, device_->capacity_bytes());
  memory.commit(base, bytes);
  EXPECT_EQ(device_->foreign_bytes(), before);
  memory.decommit(base, bytes);
  EXPECT_EQ(device_->foreign_bytes(), before);
  memory.unreserve(base, bytes);
}

TEST_F(CudaDevice, WhatDoesNotFitIsAnErrorThatLeavesNothing) {
  AddressSpace& memory = device_->memory();
  const int64_t free = free_bytes();
  const int64_t bytes = free / memory.granularity() * memory.granularity() + (int64_t{1} << 30);
  std::byte* const base = memory.reserve(bytes);
  try {
    memory.commit(base, bytes);
    FAIL() << "more than there is was granted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
  }
  EXPECT_EQ(free_bytes(), free);
  memory.unreserve(base, bytes);
}

TEST_F(CudaDevice, PinnedMemoryComesAndGoesAtItsAddress) {
  AddressSpace& memory = device_->host_memory();
  const int64_t bytes = int64_t{64} << 20;
  std::byte* const base = memory.reserve(bytes);
  AddressSpace& remote = device_->memory();
  std::byte* const there = remote.reserve(bytes);
  remote.commit(there, bytes);
  for (uint8_t round = 1; round <= 2; ++round) {
    memory.commit(base, bytes);
    std::memset(base, round, static_cast<size_t>(bytes));
    stream_->copy(there, base, bytes);
    stream_->synchronize();
    std::memset(base, 0, static_cast<size_t>(bytes));
    stream_->copy(base, there, bytes);
    stream_->synchronize();
    EXPECT_EQ(std::to_integer<int>(base[bytes - 1]), round);
    memory.decommit(base, bytes);
  }
  remote.decommit(there, bytes);
  memory.unreserve(base, bytes);
  remote.unreserve(there, bytes);
}

TEST_F(CudaDevice, EventsOrderStreamsAndGraphsRepeat) {
  const auto other = device_->make_stream(StreamUse::copy_to_host);
  AddressSpace& memory = device_->memory();
  const int64_t bytes = int64_t{64} << 20;
  std::byte* const a = memory.reserve(2 * bytes);
  memory.commit(a, 2 * bytes);
  std::byte* const b = a + bytes;
  for (uint8_t round = 1; round <= 5; ++round) {
    const std::vector<uint8_t> pattern(static_cast<size_t>(bytes), round);
    stream_->copy(a, pattern.data(), bytes);
    other->wait(stream_->record());
    other->copy(b, a, bytes);
    const Event done = other->record();
    done.synchronize();
    EXPECT_TRUE(done.done());
    EXPECT_EQ(read(b + bytes - 16, 16), std::vector<uint8_t>(16, round));
  }
  ASSERT_TRUE(stream_->captures());
  const auto graph = stream_->capture([&] { stream_->copy(b, a, bytes); });
  stream_->fill_zero(b, bytes);
  EXPECT_EQ(read(b, 16), std::vector<uint8_t>(16, 0)) << "capturing ran it";
  graph->launch();
  EXPECT_EQ(read(b, 16), std::vector<uint8_t>(16, 5));
  memory.decommit(a, 2 * bytes);
  memory.unreserve(a, 2 * bytes);
}

TEST(CudaDeviceCount, AnAbsentDeviceIsOneClearError) {
  const int count = cuda_device_count();
  try {
    make_cuda_device(count);
    FAIL() << "a device that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
    if (count == 0) {
      EXPECT_NE(std::string(error.what()).find("--device cpu"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace miles
