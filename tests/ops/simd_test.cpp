// The vector helpers, compiled here for the baseline instruction set under a name of their own.
#define MILES_ISA simd_test
#include "ops/cpu/simd.h"

#include <limits>

#include "ops/cpu/vexp.h"
#include "tests/ops/op_test.h"

namespace miles::test {
namespace {

using namespace miles::simd_test;

float exp_of(float x) {
  return vexp(splat(x))[0];
}

TEST(VectorExp, IsWithinTwoUlpOverTheWholeRange) {
  MILES_CPU_ONLY();
  for (int i = 0; i <= 1000000; ++i) {
    const float x = -87.0F + 175.0F * static_cast<float>(i) / 1e6F;
    const double want = std::exp(double{x});
    const double ulp = std::ldexp(1.0, std::ilogb(want) - 23);
    ASSERT_LE(std::abs(double{exp_of(x)} - want), 2 * ulp) << x;
  }
}

TEST(VectorExp, HandlesTheEnds) {
  MILES_CPU_ONLY();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_of(0), 1.0F);
  EXPECT_EQ(exp_of(-infinity), 0.0F);
  EXPECT_EQ(exp_of(-1e30F), 0.0F);
  EXPECT_EQ(exp_of(-87.4F), 0.0F);
  EXPECT_EQ(exp_of(infinity), infinity);
  EXPECT_EQ(exp_of(1e30F), infinity);
  EXPECT_EQ(exp_of(88.723F), infinity);
  EXPECT_TRUE(std::isfinite(exp_of(88.7228F)));
  EXPECT_TRUE(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorBf16, RoundsAsTheScalarConversionDoes) {
  MILES_CPU_ONLY();
  for (uint64_t i = 0; i < 100000; ++i) {
    const float x = std::bit_cast<float>(philox(1, RngUse::test, 0, i)[0]);
    BFloat16 stored[kWidth];
    store(stored, splat(x));
    ASSERT_EQ(stored[0].bits, to_bfloat16(x).bits) << x;
  }
}

}  // namespace
}  // namespace miles::test
