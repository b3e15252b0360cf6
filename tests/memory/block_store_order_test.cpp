// Leases on a device that works behind the host's back: no copy may overtake a kernel, nor a kernel
// a copy, whichever stream the device favours.
#include <gtest/gtest.h>

#include <algorithm>

#include "memory/block_store.h"
#include "tests/memory/lagging_device.h"

namespace miles {
namespace {

using test::LaggingDevice;
using test::LaggingStream;
using test::Timeline;

constexpr int kBlocks = 5;
constexpr int64_t kBytes = 64;

struct Keeping {
  const char* name;
  int slots;
  int resident = 0;
};

class LeaseOrder : public testing::TestWithParam<Keeping> {
 protected:
  void works_in(const Timeline::Order& order) {
    Timeline timeline(order);
    LaggingDevice device(timeline);
    Ledger ledger;
    const Memory memory{device, ledger};
    CopyStreams copies(device);  // streams 0 and 1
    LaggingStream compute(timeline);
    Region home(memory, Place::host, "home", kBlocks * kBytes);
    home.commit();
    std::vector<int> value(kBlocks);  // of every byte of a block, after what was enqueued
    for (int block = 0; block < kBlocks; ++block) {
      value[static_cast<size_t>(block)] = block + 1;
      std::memset(home.data() + block * kBytes, block + 1, kBytes);
    }
    BlockStoreOptions options{.home = home.data(),
                              .blocks = {},
                              .tag = "slots",
                              .slots = GetParam().slots,
                              .resident = GetParam().resident};
    for (int block = 0; block < kBlocks; ++block)
      options.blocks.push_back({block * kBytes, kBytes});
    BlockStore store(memory, copies, options);
    std::mt19937_64 random(order.seed);
    int wrong = 0;  // kernels that found another value
    const auto use = [&](int block, Access access, int next) {
      const auto lease = store.acquire(block, access, compute);
      store.prefetch(next);
      int& now = value[static_cast<size_t>(block)];
      const int found = now;
      if (access != Access::read) now = (now + 7) % 251;
      compute.run([&wrong, data = lease.data(), access, found, now] {
        const auto is = [&](std::byte byte) { return byte == static_cast<std::byte>(found); };
        if (access != Access::overwrite && !std::all_of(data, data + kBytes, is)) ++wrong;
        if (access != Access::read) std::memset(data, now, kBytes);
      });
    };
    const auto expect_home = [&] {
      for (int block = 0; block < kBlocks; ++block)
        EXPECT_EQ(home.data()[(block + 1) * kBytes - 1],
                  static_cast<std::byte>(value[static_cast<size_t>(block)]))
            << block;
    };
    for (int cycle = 0; cycle < 2; ++cycle) {
      store.onload();
      for (const Access access : {Access::read, Access::update, Access::read, Access::overwrite}) {
        for (int block = 0; block < kBlocks; ++block) use(block, access, block + 1);
        for (int block = kBlocks - 1; block >= 0; --block) use(block, access, block - 1);
      }
      for (int n = 0; n < 60; ++n) {
        const auto draw = [&](size_t of) { return static_cast<int>(random() % of); };
        constexpr Access kAccesses[] = {Access::read, Access::update, Access::overwrite};
        use(draw(kBlocks), kAccesses[draw(3)], draw(2 * kBlocks));  // a half asks for none
      }
      if (cycle == 0) {
        store.flush();
        expect_home();
      }
      store.offload();
      expect_home();
      // Nothing is on its way to or from memory that has been given back.
      for (size_t stream = 0; stream < 3; ++stream) EXPECT_TRUE(timeline.empty(stream)) << stream;
    }
    EXPECT_EQ(wrong, 0);
  }
};

TEST_P(LeaseOrder, HoldsWhicheverStreamIsFast) {
  for (std::vector<size_t> first :
       {std::vector<size_t>{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
    SCOPED_TRACE(testing::Message() << first[0] << first[1] << first[2]);
    works_in({.first = std::move(first)});
  }
}

TEST_P(LeaseOrder, HoldsInAnyOrder) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    works_in({.seed = seed});
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, LeaseOrder,
                         testing::Values(Keeping{"Resident", 0}, Keeping{"WindowOfOne", 1},
                                         Keeping{"WindowOfTwo", 2}, Keeping{"WindowOfThree", 3},
                                         Keeping{"WindowOfTwoAndTwoResident", 2, 2}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace miles
