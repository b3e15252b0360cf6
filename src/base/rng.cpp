#include "base/rng.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace miles {

std::array<uint32_t, 4> philox(uint64_t seed, RngUse use, uint64_t stream, uint64_t counter) {
  constexpr uint32_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  // The purpose is folded into the key, so that equal (stream, counter) pairs never meet.
  const uint64_t key = seed ^ (static_cast<uint64_t>(use) * 0xD1342543DE82EF95ULL);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                               static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMul0) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(kMul1) * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

static float unit_interval(uint32_t bits) {
  // The 24 high bits, centred: (0.5 … 2^24 - 0.5) / 2^24.
  return (static_cast<float>(bits >> 8) + 0.5F) * 0x1p-24F;
}

float uniform(uint64_t seed, RngUse use, uint64_t stream, uint64_t counter) {
  return unit_interval(philox(seed, use, stream, counter)[0]);
}

float normal(uint64_t seed, RngUse use, uint64_t stream, uint64_t counter) {
  const auto bits = philox(seed, use, stream, counter);
  const float radius = std::sqrt(-2.0F * std::log(unit_interval(bits[0])));
  return radius * std::cos(2.0F * std::numbers::pi_v<float> * unit_interval(bits[1]));
}

uint64_t uniform_below(uint64_t bound, uint64_t seed, RngUse use, uint64_t stream,
                       uint64_t counter) {
  MILES_CHECK(bound > 0, "bound is 0");
  const auto bits = philox(seed, use, stream, counter);
  const uint64_t word = (static_cast<uint64_t>(bits[0]) << 32) | bits[1];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(word) * bound) >> 64);
}

std::vector<int64_t> permutation(int64_t n, uint64_t seed, uint64_t stream) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = n - 1; i > 0; --i) {
    const auto j = static_cast<int64_t>(uniform_below(
        static_cast<uint64_t>(i) + 1, seed, RngUse::shuffle, stream, static_cast<uint64_t>(i)));
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(j)]);
  }
  return order;
}

}  // namespace miles
