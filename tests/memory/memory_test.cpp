#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "base/error.h"
#include "memory/arena.h"
#include "memory/block_store.h"
#include "memory/region.h"

namespace miles {
namespace {

class MemoryTest : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device();
  Ledger ledger_{{.device_bytes = 1 << 20, .host_bytes = 1 << 20}};
  Memory memory_{*device_, ledger_};
};

TEST_F(MemoryTest, ARegionKeepsItsAddressAndBooksWhatItHolds) {
  Region region(memory_, Place::device, "actor.params", 5000);
  EXPECT_EQ(ledger_.usage(Place::device).total, 0);
  std::byte* const address = region.data();
  region.commit();
  region.commit();
  EXPECT_EQ(ledger_.usage(Place::device).by_tag.at("actor.params"), 8192);
  std::memset(region.data(), 1, 8192);
  region.release();
  region.release();
  EXPECT_EQ(ledger_.usage(Place::device).total, 0);
  region.commit();
  EXPECT_EQ(region.data(), address);
  EXPECT_EQ(region.data()[100], std::byte{0}) << "released memory came back with its content";
}

TEST_F(MemoryTest, ABudgetIsExactToTheByte) {
  Region fits(memory_, Place::device, "a", 1 << 20);
  fits.commit();
  Region one_more(memory_, Place::device, "b", 1);
  try {
    one_more.commit();
    FAIL() << "a byte over the budget was granted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::budget);
    const std::string message = error.what();
    EXPECT_NE(message.find("a 1.0 MiB"), std::string::npos) << message;
    EXPECT_NE(message.find("--gpu-memory-budget"), std::string::npos) << message;
  }
  EXPECT_FALSE(one_more.committed());
  EXPECT_EQ(ledger_.usage(Place::device).total, 1 << 20);
}

TEST_F(MemoryTest, PeaksAreKeptPerEventAndForEver) {
  Region big(memory_, Place::host, "big", 8192), small(memory_, Place::host, "small", 4096);
  big.commit();
  big.release();
  small.commit();
  EXPECT_EQ(ledger_.usage(Place::host).event_peak, 8192);
  EXPECT_EQ(ledger_.usage(Place::host).at_event_peak, (TagBytes{{"big", 8192}}));
  ledger_.begin_event();
  EXPECT_EQ(ledger_.usage(Place::host).at_event_peak, (TagBytes{{"small", 4096}}));
  EXPECT_EQ(ledger_.usage(Place::host).event_peak, 4096);
  EXPECT_EQ(ledger_.usage(Place::host).peak, 8192);
}

TEST(Arena, MeasuresWhatItPlaces) {
  Arena measure;
  measure.allocate(DType::f32, {3});
  measure.allocate(DType::bf16, {100, 7});
  EXPECT_EQ(measure.used(), 256 + 1536);
  alignas(256) std::byte room[2048];
  Arena arena(room, 1792);
  EXPECT_EQ(arena.allocate(DType::f32, {3}).data(), room);
  EXPECT_EQ(arena.allocate(DType::bf16, {100, 7}).data(), room + 256);
  EXPECT_DEATH(arena.allocate(DType::u8, {1}), "arena of 1792 bytes");
}

/// How a store keeps its blocks: on the device, all in slots, or in a window.
struct StoreCase {
  const char* name;
  Place home;
  int slots;
  int resident = 0;
};

class BlockStoreTest : public MemoryTest, public testing::WithParamInterface<StoreCase> {
 protected:
  static constexpr int kBlocks = 5;
  static constexpr int64_t kBytes = 40000;

  BlockStoreTest() {
    home_.commit();
    for (int i = 0; i < kBlocks; ++i) std::memset(home_.data() + i * kBytes, i + 1, kBytes);
  }

  BlockStoreOptions options() {
    BlockStoreOptions options{.home_place = GetParam().home,
                              .home = home_.data(),
                              .blocks = {},
                              .tag = "slots",
                              .slots = GetParam().slots,
                              .resident = GetParam().resident};
    for (int i = 0; i < kBlocks; ++i) options.blocks.push_back({i * kBytes, kBytes});
    return options;
  }

  Region home_{memory_, GetParam().home, "home", kBlocks* kBytes};
  CopyStreams copies_{*device_};
  std::unique_ptr<Stream> compute_ = device_->make_stream(StreamUse::compute);
};

TEST_P(BlockStoreTest, UpdatesArriveInTheHomeWhateverTheWindow) {
  BlockStore store(memory_, copies_, options());
  for (int cycle = 0; cycle < 3; ++cycle) {
    store.onload();
    for (int pass = 0; pass < 4; ++pass) {
      for (int step = 0; step < kBlocks; ++step) {
        const int block = pass % 2 == 0 ? step : kBlocks - 1 - step;
        const auto lease = store.acquire(block, Access::update, *compute_);
        store.prefetch(block + 1);
        auto* bytes = reinterpret_cast<uint8_t*>(lease.data());
        ASSERT_EQ(bytes[0], block + 1 + 4 * cycle + pass);
        ASSERT_EQ(bytes[kBytes - 1], bytes[0]);
        std::memset(bytes, bytes[0] + 1, kBytes);
      }
    }
    store.offload();
    store.offload();
    for (int i = 0; i < kBlocks; ++i)
      EXPECT_EQ(static_cast<int>(home_.data()[i * kBytes + 7]), i + 1 + 4 * (cycle + 1));
  }
}

TEST_P(BlockStoreTest, TakesNoMoreThanItsSlots) {
  BlockStore store(memory_, copies_, options());
  const int64_t before = ledger_.usage(Place::device).total;
  store.onload();
  const int64_t held = ledger_.usage(Place::device).total - before;
  if (GetParam().home == Place::device)
    EXPECT_EQ(held, 0);
  else if (GetParam().slots > 0)
    EXPECT_LT(held, kBlocks * kBytes);
  else
    EXPECT_GE(held, kBlocks * kBytes);
  EXPECT_EQ(held, store.device_bytes());
  store.offload();
  EXPECT_EQ(ledger_.usage(Place::device).total, before);
}

TEST_P(BlockStoreTest, WithoutItsWindowItKeepsWhatIsResident) {
  BlockStore store(memory_, copies_, options());
  const auto slots = [this] {  // bytes
    const TagBytes& tags = ledger_.usage(Place::device).by_tag;
    const auto found = tags.find("slots");
    return found == tags.end() ? 0 : found->second;
  };
  for (int cycle = 0; cycle < 3; ++cycle) {
    store.onload();
    for (int block = 0; block < kBlocks; ++block) {
      const auto lease = store.acquire(block, Access::update, *compute_);
      ASSERT_EQ(static_cast<int>(lease.data()[3]), block + 1 + cycle);
      std::memset(lease.data(), block + 2 + cycle, kBytes);
    }
    const int64_t held = slots();
    store.offload_window();
    store.offload_window();
    const int64_t kept = slots();
    if (GetParam().slots == 0)
      EXPECT_EQ(kept, held);
    else
      EXPECT_EQ(kept > 0, GetParam().resident > 0);
  }
  store.offload();
  EXPECT_EQ(slots(), 0);
  for (int i = 0; i < kBlocks; ++i)
    EXPECT_EQ(static_cast<int>(home_.data()[i * kBytes + 9]), i + 4);
}

TEST_P(BlockStoreTest, BringsAllItsMemoryOrNone) {
  BlockStore store(memory_, copies_, options());
  if (store.device_bytes() == 0) return;
  // Room for all but a page.
  Region rest(memory_, Place::device, "rest",
              (1 << 20) - ledger_.usage(Place::device).total - store.device_bytes() + 4096);
  rest.commit();
  const int64_t before = ledger_.usage(Place::device).total;
  EXPECT_THROW(store.onload(), Error);
  EXPECT_EQ(ledger_.usage(Place::device).total, before);
  rest.release();
  store.onload();
  const auto lease = store.acquire(4, Access::read, *compute_);
  EXPECT_EQ(static_cast<int>(lease.data()[0]), 5);
}

TEST_P(BlockStoreTest, InvalidateBringsWhatTheHomeHoldsNow) {
  BlockStore store(memory_, copies_, options());
  store.onload();
  { const auto lease = store.acquire(2, Access::read, *compute_); }
  store.invalidate();
  std::memset(home_.data() + 2 * kBytes, 99, kBytes);
  const auto lease = store.acquire(2, Access::read, *compute_);
  EXPECT_EQ(static_cast<int>(lease.data()[5]), 99);
}

TEST_P(BlockStoreTest, OverwriteNeedsNoCopyAndIsWrittenBack) {
  BlockStore store(memory_, copies_, options());
  store.onload();
  for (int block = 0; block < kBlocks; ++block) {
    const auto lease = store.acquire(block, Access::overwrite, *compute_);
    std::memset(lease.data(), 50 + block, kBytes);
  }
  store.flush();
  for (int i = 0; i < kBlocks; ++i)
    EXPECT_EQ(static_cast<int>(home_.data()[(i + 1) * kBytes - 1]), 50 + i);
  EXPECT_EQ(ledger_.usage(Place::device).arrived, 0);
  EXPECT_EQ(ledger_.usage(Place::host).arrived,
            GetParam().home == Place::device ? 0 : kBlocks * kBytes);
  ledger_.begin_event();
  EXPECT_EQ(ledger_.usage(Place::host).arrived, 0);
}

/// A stream of a device that has failed.
class FailedStream : public Stream {
 public:
  void copy(void*, const void*, int64_t) override {}
  void fill_zero(void*, int64_t) override {}
  Event record() override { fail(ErrorCode::device, "the device has failed"); }
  void wait(const Event&) override {}
  void synchronize() override {}
};

TEST_P(BlockStoreTest, ADeviceThatFailsUnderALeaseIsToldByTheNext) {
  if (GetParam().home == Place::device) GTEST_SKIP() << "a lease in place records nothing";
  BlockStore store(memory_, copies_, options());
  store.onload();
  FailedStream failed;
  { const auto lease = store.acquire(0, Access::read, failed); }
  EXPECT_THROW((void)store.acquire(1, Access::read, *compute_), Error);
  copies_.to_device->synchronize();  // which nobody has waited for
}

INSTANTIATE_TEST_SUITE_P(Stores, BlockStoreTest,
                         testing::Values(StoreCase{"InPlace", Place::device, 0},
                                         StoreCase{"Resident", Place::host, 0},
                                         StoreCase{"WindowOfTwo", Place::host, 2},
                                         StoreCase{"WindowOfThree", Place::host, 3},
                                         StoreCase{"WindowOfTwoAndTwoResident", Place::host, 2, 2}),
                         [](const auto& info) { return info.param.name; });

TEST_F(MemoryTest, HomelessBlocksLiveInTheirSlotsAlone) {
  constexpr int64_t kBytes = 1000;
  const auto compute = device_->make_stream(StreamUse::compute);
  Region home(memory_, Place::host, "home", kBytes);  // of the last block alone
  home.commit();
  CopyStreams streams(*device_);
  BlockStore store(memory_, streams,
                   {.home = home.data(),
                    .blocks = {{0, kBytes}, {0, kBytes}, {0, kBytes}, {0, kBytes}},
                    .tag = "slots",
                    .slots = 1,
                    .resident = 2,
                    .homeless = true});
  store.onload();
  for (int block = 0; block < 4; ++block) {
    const auto lease = store.acquire(block, Access::overwrite, *compute);
    std::memset(lease.data(), 70 + block, kBytes);
  }
  for (int block = 0; block < 2; ++block) {
    const auto lease = store.acquire(block, Access::read, *compute);
    EXPECT_EQ(static_cast<int>(lease.data()[kBytes - 1]), 70 + block);
  }
  // A fork has no thread that would end the copies on their way, for which invalidate() waits.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        store.invalidate();
        (void)store.acquire(0, Access::read, *compute);
      },
      "block 0 was never written");
  store.flush();
  EXPECT_EQ(static_cast<int>(home.data()[0]), 73);
  EXPECT_EQ(ledger_.usage(Place::host).arrived, 2 * kBytes);
  store.offload();
  EXPECT_EQ(static_cast<int>(home.data()[0]), 73);
}

TEST(Ledger, NamesTheLargestTagsFirst) {
  Ledger ledger;
  ledger.take(Place::host, "small", 10);
  ledger.take(Place::host, "large", 4096);
  EXPECT_EQ(largest_tags(ledger.usage(Place::host).by_tag), "large 4.0 KiB, small 10 B");
  EXPECT_DEATH(ledger.give_back(Place::host, "small", 11), "given back");
}

}  // namespace
}  // namespace miles
