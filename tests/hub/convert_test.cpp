#include "hub/convert.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "hub/parallel_ranges.h"

namespace miles {
namespace {

uint16_t as_bfloat16(float x) {
  BFloat16 y{};
  convert({&x, DType::f32, {1}}, {&y, DType::bf16, {1}});
  return y.bits;
}

float from_half(uint16_t bits) {
  Half x{bits};
  float y = 0;
  convert({&x, DType::f16, {1}}, {&y, DType::f32, {1}});
  return y;
}

TEST(Convert, RoundsToNearestEven) {
  EXPECT_EQ(as_bfloat16(std::bit_cast<float>(0x3F808000U)), 0x3F80);  // half-way: down to even
  EXPECT_EQ(as_bfloat16(std::bit_cast<float>(0x3F818000U)), 0x3F82);  // half-way: up to even
  EXPECT_EQ(as_bfloat16(std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_EQ(as_bfloat16(std::numeric_limits<float>::max()), 0x7F80);  // to infinity
  EXPECT_EQ(as_bfloat16(-0.0F), 0x8000);
  EXPECT_TRUE(std::isnan(to_float(BFloat16{as_bfloat16(std::bit_cast<float>(0x7F800001U))})));
}

TEST(Convert, ReadsEveryKindOfHalf) {
  EXPECT_EQ(from_half(0x3C00), 1.0F);
  EXPECT_EQ(from_half(0x0001), 0x1p-24F);  // subnormal
  EXPECT_EQ(from_half(0x83FF), -0x1.FF8p-15F);
  EXPECT_EQ(from_half(0x7BFF), 65504.0F);
  EXPECT_EQ(from_half(0xFC00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(from_half(0x7E00)));
}

TEST(Convert, LongTensorsAreConvertedToTheLastElement) {
  constexpr int64_t kCount = (1 << 20) + 17;
  std::vector<BFloat16> narrow(kCount);
  for (size_t i = 0; i < narrow.size(); ++i) narrow[i].bits = static_cast<uint16_t>(i % 0x7F80);
  std::vector<float> wide(kCount, -1);
  std::vector<BFloat16> back(kCount);
  convert(Tensor::view(std::span(narrow), {kCount}), Tensor::view(std::span(wide), {kCount}));
  convert(Tensor::view(std::span(wide), {kCount}), Tensor::view(std::span(back), {kCount}));
  for (size_t i = 0; i < narrow.size(); ++i) {
    ASSERT_EQ(wide[i], to_float(narrow[i])) << i;
    ASSERT_EQ(back[i].bits, narrow[i].bits) << i;
  }
}

TEST(ParallelRanges, CoverEveryElementOnceAndStartAtGrains) {
  for (const int64_t count : {0, 1, 7, 8, 9, 1000, 1001}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
    std::atomic<int> off_grain = 0;
    parallel_ranges(count, 8, [&](int64_t first, int64_t last) {
      if (first % 8 != 0 || first >= last) ++off_grain;
      for (int64_t i = first; i < last; ++i) ++visits[static_cast<size_t>(i)];
    });
    EXPECT_EQ(off_grain, 0);
    for (const auto& visit : visits) EXPECT_EQ(visit, 1) << count;
  }
}

}  // namespace
}  // namespace miles
