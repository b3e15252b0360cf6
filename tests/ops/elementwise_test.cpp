#include "ops/elementwise.h"

#include <limits>

#include "base/error.h"
#include "tests/ops/op_test.h"

namespace miles::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <class From, class To>
Values<To> cast_all(Values<From> from) {
  OpBench bench;
  Exec exec = bench.exec();
  Values<To> to(from.size());
  cast(exec, {.from = tensor(from), .to = tensor(to)});
  return to;
}

float sum_of_squares_of(Tensor x) {
  OpBench bench;
  Exec exec = bench.exec();
  Values<float> out(1);
  sum_of_squares(exec, {.x = x, .out = tensor(out)});
  return out[0];
}

TEST(Cast, RoundsAsTheScalarConversionDoes) {
  for (const int64_t n : {1, 3, 64, 4099, 40001}) {
    auto x = normals<float>(n, 1);
    x[0] = kNaN;
    if (n > 2) x[1] = -kInfinity, x[2] = 0x1.ffp127F;
    Values<BFloat16> want;
    for (const float value : x) want.push_back(to_bfloat16(value));
    EXPECT_TRUE(same_bits(cast_all<float, BFloat16>(x), want));
  }
}

TEST(Cast, WideningIsExactAndEqualTypesAreCopied) {
  const auto x = normals<BFloat16>(1029, 1);
  EXPECT_TRUE(same_bits(cast_all<float, BFloat16>(cast_all<BFloat16, float>(x)), x));
  EXPECT_TRUE(same_bits(cast_all<BFloat16, BFloat16>(x), x));
}

TEST(Cast, SumsTheSquaresOfWhatItWroteAsSumOfSquaresDoes) {
  OpBench bench;
  for (const int64_t n : {0, 1, 15, 17, 65536, 65537, 200003}) {
    auto x = normals<float>(n, 4);
    Values<BFloat16> narrow(x.size());
    Values<float> copy(x.size()), squares(1);
    for (const Tensor& to : {tensor(narrow), tensor(copy)}) {
      Exec exec = bench.exec();
      cast(exec, {.from = tensor(x), .to = to, .squares = tensor(squares)});
      EXPECT_EQ(squares[0], sum_of_squares_of(to)) << n;
    }
    EXPECT_TRUE(same_bits(narrow, cast_all<float, BFloat16>(x)));
    EXPECT_TRUE(same_bits(copy, x));
  }
}

TEST(Cast, AnEmptyRunIsAllowed) {
  EXPECT_TRUE((cast_all<float, BFloat16>({})).empty());
}

template <class T>
class Add : public ::testing::Test {};
TYPED_TEST_SUITE(Add, StorageTypes);

TYPED_TEST(Add, AddsInF32AndRoundsOnce) {
  using T = TypeParam;
  OpBench bench;
  for (const int64_t n : {1, 3, 64, 172, 40001}) {
    auto x = normals<T>(n, 1), y = normals<T>(n, 2);
    Values<T> want;
    for (size_t i = 0; i < x.size(); ++i)
      want.push_back(from_float<T>(to_float(x[i]) + to_float(y[i])));
    Exec exec = bench.exec();
    Values<T> sum(x.size());
    add(exec, {.x = tensor(x), .y = tensor(y), .sum = tensor(sum)});
    EXPECT_TRUE(same_bits(sum, want));
    Displaced<T> elsewhere(sum);
    add(exec, {.x = tensor(x), .y = tensor(y), .sum = elsewhere.tensor()});
    EXPECT_TRUE(same_bits(elsewhere.values(), want));
    auto xs = x;
    add(exec, {.x = tensor(xs), .y = tensor(y), .sum = tensor(xs)});
    EXPECT_TRUE(same_bits(xs, want));
    add(exec, {.x = tensor(x), .y = tensor(y), .sum = tensor(y)});
    EXPECT_TRUE(same_bits(y, want));
  }
}

TEST(SumOfSquares, MatchesTheExactSumAtAnyLength) {
  for (const int64_t n : {1, 3, 7, 17, 65535, 65536, 65537, 200003}) {
    auto x = normals<float>(n, 1);
    double want = 0;
    for (const float value : x) want += static_cast<double>(value) * value;
    EXPECT_NEAR(sum_of_squares_of(tensor(x)), want, want * 0x1p-23) << n;
  }
  auto narrow = normals<BFloat16>(1003, 1);
  double want = 0;
  for (const BFloat16 value : narrow) want += double{to_float(value)} * double{to_float(value)};
  EXPECT_NEAR(sum_of_squares_of(tensor(narrow)), want, want * 0x1p-23);
}

TEST(SumOfSquares, SurvivesSquaresThatF32CannotHold) {
  Values<float> x(100000, 1e-30F);  // each square is below the smallest f32
  EXPECT_NEAR(sum_of_squares_of(tensor(x)), 0.0F, 1e-37F);
  x.assign(2, 1e25F);
  EXPECT_EQ(sum_of_squares_of(tensor(x)), kInfinity);
}

TEST(SumOfSquares, NaNAndInfinityShow) {
  Values<float> x(70000, 1);
  x[69999] = kNaN;
  EXPECT_TRUE(std::isnan(sum_of_squares_of(tensor(x))));
  x[69999] = -kInfinity;
  EXPECT_EQ(sum_of_squares_of(tensor(x)), kInfinity);
}

TEST(SumOfSquares, HasTheSameBitsForAnyNumberOfThreads) {
  auto x = normals<float>(1000003, 1);
  float one = 0, two = 0;
  with_threads(1, [&] { one = sum_of_squares_of(tensor(x)); });
  with_threads(2, [&] { two = sum_of_squares_of(tensor(x)); });
  EXPECT_EQ(one, two);
}

TEST(Backends, ADeviceWithoutABackendIsRefused) {
  try {
    kernels(DeviceKind::cuda);
    GTEST_SKIP() << "this build has a CUDA backend";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
    EXPECT_NE(std::string(error.what()).find("CUDA"), std::string::npos);
  }
}

}  // namespace
}  // namespace miles::test
