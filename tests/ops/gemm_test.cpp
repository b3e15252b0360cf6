#include "ops/gemm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/cpu/gemm.h"
#include "tests/ops/op_test.h"

namespace miles {

// The narrowest instruction set is always built; elsewhere the table picks a wider one.
namespace baseline {
void linear(Exec& exec, const LinearArgs& args);
}

namespace {

/// A matrix of f32 or bf16 that owns its elements.
struct Matrix {
  Matrix(DType dtype, int64_t rows, int64_t columns)
      : bytes(static_cast<size_t>(rows * columns * size_of(dtype))),
        tensor(bytes.data(), dtype, {rows, columns}) {}
  Matrix(Matrix&&) = default;

  float operator()(int64_t i, int64_t j) const {
    const int64_t at = i * tensor.dim(1) + j;
    return tensor.dtype() == DType::f32 ? tensor.as<float>()[at]
                                        : to_float(tensor.as<BFloat16>()[at]);
  }
  void set(int64_t i, int64_t j, float value) {
    const int64_t at = i * tensor.dim(1) + j;
    if (tensor.dtype() == DType::f32)
      tensor.as<float>()[at] = value;
    else
      tensor.as<BFloat16>()[at] = to_bfloat16(value);
  }

  std::vector<std::byte, test::TestAllocator<std::byte>> bytes;
  Tensor tensor;
};

Matrix random_matrix(DType dtype, int64_t rows, int64_t columns, uint32_t seed) {
  Matrix x(dtype, rows, columns);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) x.set(i, j, normal(generator));
  return x;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

struct Case {
  DType in, out;
  Bf16Path path;
  bool narrowest = false;  // the baseline instruction set's forward
  bool amx = false;        // emulated
};

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return std::string(c.in == DType::f32 ? "f32" : "bf16") + "_to_" +
         (c.out == DType::f32 ? "f32" : "bf16") +
         (c.path == Bf16Path::converted ? "_converted" : "") + (c.narrowest ? "_narrowest" : "") +
         (c.amx ? "_amx" : "");
}

class GemmTest : public testing::TestWithParam<Case> {
 protected:
  GemmTest() {
    set_bf16_path(GetParam().path);
    set_emulate_amx(GetParam().amx);
  }
  ~GemmTest() override {
    set_emulate_amx(false);
    set_bf16_path(Bf16Path::native);
    omp_set_num_threads(threads_);
  }

  void forward(const Tensor& x, const Tensor& w, const Tensor& y) {
    const LinearArgs args{.x = x, .w = w, .y = y};
    if (GetParam().narrowest) return baseline::linear(exec_, args);
    linear(exec_, args);
  }
  Matrix forward(const Tensor& x, const Tensor& w) {
    Matrix y(GetParam().out, x.dim(0), w.dim(0));
    forward(x, w, y.tensor);
    return y;
  }

  /// |value − exact| is within what f32 sums of `terms` products (of absolute sum `size`) and one
  /// rounding allow.
  void expect_close(float value, double exact, double size, int64_t terms, DType rounded) {
    const double sum = static_cast<double>(terms + 2) * 0x1p-23 * size;
    const double round = rounded == DType::bf16 ? 0x1p-8 * (std::abs(exact) + sum) : 0;
    ASSERT_NEAR(value, exact, sum + round + 1e-30);
  }

  void SetUp() override {
    if (GetParam().narrowest || GetParam().amx || GetParam().path != Bf16Path::native)
      MILES_CPU_ONLY();
  }

  int threads_ = omp_get_max_threads();
  test::OpBench bench_;
  Exec exec_ = bench_.exec();
};

struct Extents {
  int64_t m, n, k;
};
// Whole and partial tiles of every path, single rows and columns, K across the pieces of a sum.
const Extents kExtents[] = {{1, 1, 1},     {3, 1, 7},     {1, 5, 2},     {2, 172, 64},
                            {17, 64, 172}, {64, 512, 64}, {97, 37, 333}, {33, 31, 513},
                            {5, 66, 1090}, {130, 258, 96}};

class Linear : public GemmTest {};

TEST_P(Linear, MatchesTheSumInDoublePrecision) {
  for (const auto& [m, n, k] : kExtents) {
    SCOPED_TRACE(testing::Message() << m << "x" << n << "x" << k);
    const Matrix x = random_matrix(GetParam().in, m, k, 1),
                 w = random_matrix(GetParam().in, n, k, 2);
    const Matrix y = forward(x.tensor, w.tensor);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double exact = 0, size = 0;
        for (int64_t p = 0; p < k; ++p) {
          exact += static_cast<double>(x(i, p)) * w(j, p);
          size += std::abs(static_cast<double>(x(i, p)) * w(j, p));
        }
        expect_close(y(i, j), exact, size, k, GetParam().out);
      }
  }
}

TEST_P(Linear, ARowHasTheSameBitsInABatchOfAnySizeAndPlace) {
  constexpr int64_t kMost = 1025;
  const std::pair<int64_t, int64_t> shapes[] = {
      {172, 64}, {64, 172}, {61, 129}, {7, 33}, {35, 530}};
  for (const auto& [n, k] : shapes) {
    const Matrix x = random_matrix(GetParam().in, kMost, k, 3);
    const Matrix w = random_matrix(GetParam().in, n, k, 4);
    const Matrix all = forward(x.tensor, w.tensor);
    for (const int64_t m : {1, 2, 3, 8, 17, 64, 257}) {
      for (const int64_t first : {int64_t{0}, int64_t{5}, int64_t{101}, kMost - m}) {
        const Matrix y = forward(x.tensor.rows(first, m), w.tensor);
        ASSERT_TRUE(same_bits(y.tensor, all.tensor.rows(first, m)))
            << m << " rows from " << first << " of [" << n << ", " << k << "]";
      }
    }
  }
}

/// What cuBLASLt computes, at models' extents.
TEST_P(Linear, ARowHasTheSameBitsOnTensorCoresToo) {
  if (!test::on_cuda()) GTEST_SKIP() << "about a GPU's tensor cores";
  if (GetParam().narrowest || GetParam().path != Bf16Path::native) GTEST_SKIP();
  constexpr int64_t kMost = 2048;
  const std::pair<int64_t, int64_t> shapes[] = {
      {1024, 3072}, {4096, 1024}, {512, 12288}, {19456, 256}, {64, 64}};
  for (const auto& [n, k] : shapes) {
    const Matrix x = random_matrix(GetParam().in, kMost, k, 3);
    const Matrix w = random_matrix(GetParam().in, n, k, 4);
    const Matrix all = forward(x.tensor, w.tensor);
    for (const int64_t m : {1, 3, 8, 17, 64, 257, 1000}) {
      const int64_t first = kMost - m;
      // A product whose rows need not be invariant comes before: it must not lend its algorithm.
      exec_.row_bits = RowBits::of_extents;
      forward(x.tensor.rows(first, m), w.tensor);
      exec_.row_bits = RowBits::invariant;
      const Matrix y = forward(x.tensor.rows(first, m), w.tensor);
      ASSERT_TRUE(same_bits(y.tensor, all.tensor.rows(first, m)))
          << m << " rows of [" << n << ", " << k << "]";
    }
  }
}

TEST_P(Linear, NeighboursDoNotReachARowNotEvenWithNaN) {
  const int64_t n = GetParam().path == Bf16Path::native ? 72 : 70, k = n == 72 ? 136 : 130;
  const Matrix w = random_matrix(GetParam().in, n, k, 5);
  for (const int64_t m : {2, 8, 40}) {
    Matrix x = random_matrix(GetParam().in, m, k, 6);
    const Matrix before = forward(x.tensor, w.tensor);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < k; ++j)
        if (i != 1) x.set(i, j, j % 2 == 0 ? std::nanf("") : 3e38F);
    const Matrix after = forward(x.tensor, w.tensor);
    EXPECT_TRUE(same_bits(before.tensor.rows(1, 1), after.tensor.rows(1, 1)));
    EXPECT_TRUE(std::isnan(after(0, 0)));
  }
}

TEST_P(Linear, ANanInTheLastInputShowsInEveryOutputOfItsRow) {
  const int64_t n = 19, k = 45;
  Matrix x = random_matrix(GetParam().in, 3, k, 7);
  x.set(2, k - 1, std::numeric_limits<float>::quiet_NaN());
  const Matrix y = forward(x.tensor, random_matrix(GetParam().in, n, k, 8).tensor);
  for (int64_t j = 0; j < n; ++j) {
    EXPECT_TRUE(std::isnan(y(2, j)));
    EXPECT_FALSE(std::isnan(y(1, j)));
  }
}

TEST_P(Linear, TheNumberOfThreadsChangesNoBit) {
  const std::pair<int64_t, int64_t> shapes[] = {{520, 300}, {67, 1051}};
  for (const auto& [n, k] : shapes)
    for (const int64_t m : {1, 8, 150}) {
      const Matrix x = random_matrix(GetParam().in, m, k, 9);
      const Matrix w = random_matrix(GetParam().in, n, k, 10);
      omp_set_num_threads(1);
      const Matrix one = forward(x.tensor, w.tensor);
      for (const int threads : {2, 3}) {
        omp_set_num_threads(test::openmp_threads(threads));
        EXPECT_TRUE(same_bits(one.tensor, forward(x.tensor, w.tensor).tensor)) << threads;
      }
    }
}

TEST_P(Linear, WritesNothingBesideItsResult) {
  const int64_t m = 19, n = 21, k = 37;
  const Matrix x = random_matrix(GetParam().in, m, k, 11),
               w = random_matrix(GetParam().in, n, k, 12);
  Matrix y(GetParam().out, m + 2, n);
  std::fill(y.bytes.begin(), y.bytes.end(), std::byte{0x5A});
  forward(x.tensor, w.tensor, y.tensor.rows(1, m));
  const auto line = static_cast<size_t>(n * size_of(GetParam().out));
  const auto untouched = [](std::byte b) { return b == std::byte{0x5A}; };
  EXPECT_TRUE(std::all_of(y.bytes.begin(), y.bytes.begin() + line, untouched));
  EXPECT_TRUE(std::all_of(y.bytes.end() - line, y.bytes.end(), untouched));
}

INSTANTIATE_TEST_SUITE_P(Products, Linear,
                         testing::Values(Case{DType::f32, DType::f32, Bf16Path::native},
                                         Case{DType::bf16, DType::bf16, Bf16Path::native},
                                         Case{DType::bf16, DType::f32, Bf16Path::native},
                                         Case{DType::bf16, DType::bf16, Bf16Path::converted},
                                         Case{DType::bf16, DType::f32, Bf16Path::converted},
                                         Case{DType::f32, DType::f32, Bf16Path::converted, true},
                                         Case{DType::bf16, DType::bf16, Bf16Path::converted, true}),
                         name_of_case);

class LinearBackward : public GemmTest {
 protected:
  // The first ones are the degenerate strides, then every tile's edge is crossed; the next three
  // have more rows, columns and terms than are packed at once; the last two are for a GPU's tensor
  // cores: one long sum each.
  static constexpr Extents kShapes[] = {{1, 1, 1},      {9, 1, 4},       {6, 5, 1},
                                        {1, 40, 33},    {70, 172, 64},   {140, 300, 270},
                                        {3, 1100, 560}, {1060, 3, 1030}, {2070, 1030, 2},
                                        {9, 4096, 64},  {999, 64, 72}};

  Matrix input(const Matrix& dy, const Matrix& w, Accumulate accumulate, const Matrix& before) {
    Matrix dx(GetParam().in, dy.tensor.dim(0), w.tensor.dim(1));
    dx.bytes = before.bytes;
    dx.tensor = Tensor(dx.bytes.data(), GetParam().in, before.tensor.shape());
    linear_backward_input(
        exec_, {.dy = dy.tensor, .w = w.tensor, .dx = dx.tensor, .accumulate = accumulate});
    return dx;
  }
  Matrix weight(const Matrix& dy, const Matrix& x, const Matrix& before) {
    Matrix dw(DType::f32, dy.tensor.dim(1), x.tensor.dim(1));
    std::copy(before.bytes.begin(), before.bytes.end(), dw.bytes.begin());
    linear_backward_weight(exec_, {.dy = dy.tensor, .x = x.tensor, .dw = dw.tensor});
    return dw;
  }
};

TEST_P(LinearBackward, InputGradientMatchesTheSumInDoublePrecision) {
  for (const auto& [m, n, k] : kShapes)
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      SCOPED_TRACE(testing::Message() << m << "x" << n << "x" << k);
      const Matrix dy = random_matrix(GetParam().in, m, n, 21);
      const Matrix w = random_matrix(GetParam().in, n, k, 22);
      const Matrix before = random_matrix(GetParam().in, m, k, 23);
      const Matrix dx = input(dy, w, accumulate, before);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < k; ++j) {
          double exact = accumulate == Accumulate::yes ? before(i, j) : 0, size = std::abs(exact);
          for (int64_t p = 0; p < n; ++p) {
            exact += static_cast<double>(dy(i, p)) * w(p, j);
            size += std::abs(static_cast<double>(dy(i, p)) * w(p, j));
          }
          expect_close(dx(i, j), exact, size, n, GetParam().in);
        }
    }
}

TEST_P(LinearBackward, WeightGradientIsAddedToWhatWasThere) {
  for (const auto& [m, n, k] : kShapes) {
    SCOPED_TRACE(testing::Message() << m << "x" << n << "x" << k);
    const Matrix dy = random_matrix(GetParam().in, m, n, 24);
    const Matrix x = random_matrix(GetParam().in, m, k, 25);
    const Matrix before = random_matrix(DType::f32, n, k, 26);
    const Matrix dw = weight(dy, x, before);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < k; ++j) {
        double exact = before(i, j), size = std::abs(exact);
        for (int64_t p = 0; p < m; ++p) {
          exact += static_cast<double>(dy(p, i)) * x(p, j);
          size += std::abs(static_cast<double>(dy(p, i)) * x(p, j));
        }
        expect_close(dw(i, j), exact, size, m, DType::f32);
      }
  }
}

TEST_P(LinearBackward, WithoutAccumulationOldContentDoesNotMatterEvenNaN) {
  const Matrix dy = random_matrix(GetParam().in, 5, 40, 27),
               w = random_matrix(GetParam().in, 40, 9, 28);
  const Matrix zero(GetParam().in, 5, 9);
  Matrix nan(GetParam().in, 5, 9);
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t j = 0; j < 9; ++j) nan.set(i, j, std::nanf(""));
  EXPECT_TRUE(same_bits(input(dy, w, Accumulate::no, zero).tensor,
                        input(dy, w, Accumulate::no, nan).tensor));
}

TEST_P(LinearBackward, RunsAndThreadsGiveTheSameBits) {
  for (const auto& [m, n, k] : {Extents{1150, 300, 280}, Extents{150, 4096, 64}}) {
    const Matrix dy = random_matrix(GetParam().in, m, n, 29),
                 w = random_matrix(GetParam().in, n, k, 30);
    const Matrix x = random_matrix(GetParam().in, m, k, 31);
    const Matrix dx0 = random_matrix(GetParam().in, m, k, 32),
                 dw0 = random_matrix(DType::f32, n, k, 33);
    omp_set_num_threads(1);
    const Matrix dx = input(dy, w, Accumulate::yes, dx0), dw = weight(dy, x, dw0);
    for (const int threads : {1, 2, 3}) {
      omp_set_num_threads(test::openmp_threads(threads));
      EXPECT_TRUE(same_bits(dx.tensor, input(dy, w, Accumulate::yes, dx0).tensor)) << threads;
      EXPECT_TRUE(same_bits(dw.tensor, weight(dy, x, dw0).tensor)) << threads;
      EXPECT_EQ(omp_get_max_threads(), test::openmp_threads(threads))
          << "the caller's thread count was changed";
    }
  }
}

TEST_P(LinearBackward, NoRowsChangeNothing) {
  const Matrix none(GetParam().in, 0, 4), x(GetParam().in, 0, 3),
      w = random_matrix(GetParam().in, 4, 3, 34);
  const Matrix y(GetParam().out, 0, 4), before = random_matrix(DType::f32, 4, 3, 35);
  linear(exec_, {.x = x.tensor, .w = w.tensor, .y = y.tensor});
  linear_backward_input(exec_, {.dy = none.tensor, .w = w.tensor, .dx = x.tensor});
  EXPECT_TRUE(same_bits(weight(none, x, before).tensor, before.tensor));
}

INSTANTIATE_TEST_SUITE_P(Products, LinearBackward,
                         testing::Values(Case{DType::f32, DType::f32, Bf16Path::native},
                                         Case{DType::bf16, DType::bf16, Bf16Path::native},
                                         Case{DType::bf16, DType::bf16, Bf16Path::converted},
                                         Case{.in = DType::bf16,
                                              .out = DType::bf16,
                                              .path = Bf16Path::native,
                                              .amx = true}),
                         name_of_case);

TEST(Gemm, TheBf16PathIsReadByNameAndNothingElse) {
  EXPECT_EQ(parse_bf16_path("native"), Bf16Path::native);
  EXPECT_EQ(parse_bf16_path("converted"), Bf16Path::converted);
  try {
    parse_bf16_path("fast");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::flags);
    EXPECT_NE(std::string(e.what()).find("fast"), std::string::npos);
  }
}

class GemmDeathTest : public GemmTest {};

TEST_P(GemmDeathTest, ShapesAndTypesThatDoNotFitAreRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Matrix x(DType::f32, 2, 3), w(DType::f32, 4, 3), y(DType::f32, 2, 4),
      narrow(DType::f32, 2, 2);
  const Matrix half(DType::bf16, 2, 4);
  EXPECT_DEATH(linear(exec_, {.x = x.tensor, .w = w.tensor, .y = narrow.tensor}),
               "expected float32 \\[2, 4\\]");
  EXPECT_DEATH(linear(exec_, {.x = x.tensor, .w = w.tensor, .y = half.tensor}), "bfloat16");
  EXPECT_DEATH(linear(exec_, {.x = y.tensor, .w = w.tensor, .y = y.tensor}), "expected");
  const Matrix square(DType::f32, 3, 3);
  EXPECT_DEATH(linear(exec_, {.x = square.tensor, .w = square.tensor, .y = square.tensor}),
               "overlaps");
}

INSTANTIATE_TEST_SUITE_P(Products, GemmDeathTest,
                         testing::Values(Case{DType::f32, DType::f32, Bf16Path::native}),
                         name_of_case);

}  // namespace
}  // namespace miles
