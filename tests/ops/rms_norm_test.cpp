#include "ops/rms_norm.h"

#include "tests/ops/op_test.h"

namespace miles::test {
namespace {

constexpr float kEps = 1e-5F;
/// A GPU has a kernel for rows up to 1024, 4096 and 8192 elements, and for longer ones; from 16384
/// on its threads read them twice. The backward's bounds are 4096, 8192 and, for sums that do not
/// fit in shared memory, 10240.
constexpr int64_t kWidths[] = {1, 3, 64, 172, 1024, 2056, 4099, 4104, 8192, 8203, 12288, 20000};

std::vector<double> reference(const std::vector<double>& x, const std::vector<double>& w) {
  const size_t columns = w.size();
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size(); row += columns) {
    double squares = 0;
    for (size_t c = 0; c < columns; ++c) squares += x[row + c] * x[row + c];
    const double r = 1 / std::sqrt(squares / static_cast<double>(columns) + double{kEps});
    for (size_t c = 0; c < columns; ++c) y[row + c] = x[row + c] * r * w[c];
  }
  return y;
}

template <class T>
class RmsNorm : public ::testing::Test {
 protected:
  struct Result {
    Values<T> x, y;
    Values<float> rstd;
  };
  Result run(Values<T> x, Values<T> delta, Values<T> w) {
    const auto columns = static_cast<int64_t>(w.size());
    const int64_t rows = static_cast<int64_t>(x.size()) / columns;
    Result r = {std::move(x), Values<T>(x.size()), Values<float>(static_cast<size_t>(rows))};
    r.y.resize(r.x.size());
    Exec exec = bench_.exec();
    rms_norm(exec, {.x = tensor(r.x, {rows, columns}),
                    .delta = delta.empty() ? Tensor() : tensor(delta, {rows, columns}),
                    .w = tensor(w),
                    .y = tensor(r.y, {rows, columns}),
                    .rstd = tensor(r.rstd),
                    .eps = kEps});
    return r;
  }
  OpBench bench_;
};
TYPED_TEST_SUITE(RmsNorm, StorageTypes);

TYPED_TEST(RmsNorm, MatchesTheDefinitionAtEveryWidth) {
  using T = TypeParam;
  for (const int64_t columns : kWidths) {
    const auto x = normals<T>(5 * columns, 1), w = normals<T>(columns, 2);
    const auto got = this->run(x, {}, w);
    EXPECT_TRUE(same_bits(got.x, x));
    // Two roundings to T, and f32 sums of `columns` terms in sixteen lanes.
    const double f32 = (static_cast<double>(columns) / 16 + 16) * 0x1p-24;
    expect_near(got.y, reference(doubles(x), doubles(w)), {2.01 * kUnit<T> + f32, 1e-30}, "y");
  }
}

TYPED_TEST(RmsNorm, TheResidualIsAddedInPlaceAndRoundedOnce) {
  using T = TypeParam;
  for (const int64_t columns : kWidths) {
    const auto x = normals<T>(3 * columns, 1), delta = normals<T>(3 * columns, 2);
    const auto w = normals<T>(columns, 3);
    Values<T> sum;
    for (size_t i = 0; i < x.size(); ++i)
      sum.push_back(from_float<T>(to_float(x[i]) + to_float(delta[i])));
    const auto got = this->run(x, delta, w), separately = this->run(sum, {}, w);
    EXPECT_TRUE(same_bits(got.x, sum)) << columns;
    EXPECT_TRUE(same_bits(got.y, separately.y)) << columns;
    EXPECT_TRUE(same_bits(got.rstd, separately.rstd)) << columns;
  }
}

TYPED_TEST(RmsNorm, WhereRowsLieChangesNoBit) {
  using T = TypeParam;
  for (const int64_t columns : kWidths) {
    const auto x = normals<T>(3 * columns, 1), delta = normals<T>(3 * columns, 2);
    const auto w = normals<T>(columns, 3);
    const auto want = this->run(x, delta, w);
    Displaced<T> xs(x), deltas(delta), ws(w), y(x);
    Displaced<float> rstd(want.rstd);
    Exec exec = this->bench_.exec();
    rms_norm(exec, {.x = xs.tensor({3, columns}),
                    .delta = deltas.tensor({3, columns}),
                    .w = ws.tensor(),
                    .y = y.tensor({3, columns}),
                    .rstd = rstd.tensor(),
                    .eps = kEps});
    EXPECT_TRUE(same_bits(xs.values(), want.x)) << columns;
    EXPECT_TRUE(same_bits(y.values(), want.y)) << columns;
    EXPECT_TRUE(same_bits(rstd.values(), want.rstd)) << columns;
  }
}

TYPED_TEST(RmsNorm, ARowsBitsDependOnTheRowAlone) {
  using T = TypeParam;
  const int64_t columns = 1027, rows = 37;
  const auto x = normals<T>(rows * columns, 1), w = normals<T>(columns, 2);
  typename TestFixture::Result one, two;
  with_threads(1, [&] { one = this->run(x, {}, w); });
  with_threads(2, [&] { two = this->run(x, {}, w); });
  EXPECT_TRUE(same_bits(one.y, two.y));
  for (const int64_t row : {0, 17, 36})
    EXPECT_TRUE(same_bits(this->run(rows_of(x, columns, row, 1), {}, w).y,
                          rows_of(one.y, columns, row, 1)));
}

TYPED_TEST(RmsNorm, BackwardIsTheDerivativeAddedToWhatIsThere) {
  using T = TypeParam;
  for (const int64_t columns : {1, 3, 64, 172}) {
    const int64_t rows = 3;
    const auto x = normals<T>(rows * columns, 1), dy = normals<T>(rows * columns, 2);
    auto w = normals<T>(columns, 3), dx = normals<T>(rows * columns, 4);
    auto dw = normals<float>(columns, 5);
    const auto dx_before = doubles(dx), dw_before = doubles(dw), dys = doubles(dy);
    auto xs = x, dys_in = dy;
    auto rstd = this->run(x, {}, w).rstd;
    Exec exec = this->bench_.exec();
    rms_norm_backward(exec, {.dy = tensor(dys_in, {rows, columns}),
                             .x = tensor(xs, {rows, columns}),
                             .w = tensor(w),
                             .rstd = tensor(rstd),
                             .dx = tensor(dx, {rows, columns}),
                             .dw = tensor(dw)});
    auto want_dx = differences(doubles(x), [&](const std::vector<double>& v) {
      return dot(dys, reference(v, doubles(w)));
    });
    auto want_dw = differences(doubles(w), [&](const std::vector<double>& v) {
      return dot(dys, reference(doubles(x), v));
    });
    for (size_t i = 0; i < want_dx.size(); ++i) want_dx[i] += dx_before[i];
    for (size_t i = 0; i < want_dw.size(); ++i) want_dw[i] += dw_before[i];
    // dw sees the rounded normalised value: up to |dy·x̂| ≈ 3·13 of magnitude, three rows.
    expect_near(dx, want_dx, {kUnit<T>, 2e-5}, "dx");
    expect_near(dw, want_dw, {0, 3 * 39 * kUnit<T> + 1e-6}, "dw");
  }
}

/// By the derivative as it is written down, which takes long rows; and where they lie.
TYPED_TEST(RmsNorm, BackwardOfLongRows) {
  using T = TypeParam;
  constexpr int64_t kRows = 3;
  for (const int64_t columns : kWidths) {
    auto x = normals<T>(kRows * columns, 1), dy = normals<T>(kRows * columns, 2);
    auto w = normals<T>(columns, 3), dx = normals<T>(kRows * columns, 4);
    auto dw = normals<float>(columns, 5);
    auto rstd = this->run(x, {}, w).rstd;
    auto want_dx = doubles(dx), want_dw = doubles(dw);
    for (size_t row = 0, c = static_cast<size_t>(columns); row < kRows; ++row) {
      const double r = double{rstd[row]};
      double mean = 0;
      for (size_t i = row * c; i < (row + 1) * c; ++i)
        mean += double{to_float(dy[i])} * double{to_float(w[i - row * c])} *
                double{to_float(x[i])} * r / static_cast<double>(c);
      for (size_t i = row * c; i < (row + 1) * c; ++i) {
        const double d = double{to_float(dy[i])}, u = double{to_float(x[i])} * r;
        want_dx[i] += (d * double{to_float(w[i - row * c])} - u * mean) * r;
        want_dw[i - row * c] += d * u;
      }
    }
    Displaced<T> xs(x), dys(dy), ws(w), dxs(dx);
    Displaced<float> dws(dw);
    Exec exec = this->bench_.exec();
    rms_norm_backward(exec, {.dy = tensor(dy, {kRows, columns}),
                             .x = tensor(x, {kRows, columns}),
                             .w = tensor(w),
                             .rstd = tensor(rstd),
                             .dx = tensor(dx, {kRows, columns}),
                             .dw = tensor(dw)});
    expect_near(dx, want_dx, {kUnit<T>, 2e-5}, "dx");
    expect_near(dw, want_dw, {0, 3 * 39 * kUnit<T> + 1e-5}, "dw");
    rms_norm_backward(exec, {.dy = dys.tensor({kRows, columns}),
                             .x = xs.tensor({kRows, columns}),
                             .w = ws.tensor(),
                             .rstd = tensor(rstd),
                             .dx = dxs.tensor({kRows, columns}),
                             .dw = dws.tensor()});
    EXPECT_TRUE(same_bits(dxs.values(), dx)) << columns;
    EXPECT_TRUE(same_bits(dws.values(), dw)) << columns;
  }
}

TYPED_TEST(RmsNorm, TheSumMayGoElsewhere) {
  using T = TypeParam;
  for (const int64_t columns : kWidths) {
    const int64_t rows = 3;
    auto x = normals<T>(rows * columns, 1), delta = normals<T>(rows * columns, 2);
    auto w = normals<T>(columns, 3);
    const auto before = x;
    const auto in_place = this->run(x, delta, w);
    Values<T> sum(x.size()), y(x.size());
    Displaced<T> elsewhere(sum);
    for (const Tensor& to : {tensor(sum, {rows, columns}), elsewhere.tensor({rows, columns})}) {
      Exec exec = this->bench_.exec();
      rms_norm(exec, {.x = tensor(x, {rows, columns}),
                      .delta = tensor(delta, {rows, columns}),
                      .sum = to,
                      .w = tensor(w),
                      .y = tensor(y, {rows, columns}),
                      .rstd = {},
                      .eps = kEps});
      EXPECT_TRUE(same_bits(x, before)) << columns;
      EXPECT_TRUE(same_bits(y, in_place.y)) << columns;
    }
    EXPECT_TRUE(same_bits(sum, in_place.x)) << columns;
    EXPECT_TRUE(same_bits(elsewhere.values(), in_place.x)) << columns;
  }
}

TYPED_TEST(RmsNorm, BackwardMayReplaceItsResidualOrItsInput) {
  using T = TypeParam;
  for (const int64_t columns : kWidths) {
    const int64_t rows = 150;
    auto x = normals<T>(rows * columns, 1), dy = normals<T>(rows * columns, 2);
    auto w = normals<T>(columns, 3), residual = normals<T>(rows * columns, 4);
    auto rstd = this->run(x, {}, w).rstd;
    const auto run = [&](Tensor from, Tensor to) {
      Values<float> dw(w.size(), 1.0F);
      Exec exec = this->bench_.exec();
      rms_norm_backward(exec, {.dy = tensor(dy, {rows, columns}),
                               .x = tensor(x, {rows, columns}),
                               .w = tensor(w),
                               .rstd = tensor(rstd),
                               .dresidual = from,
                               .dx = to,
                               .dw = tensor(dw)});
      return dw;
    };
    Values<T> apart(x.size());
    const Tensor past = tensor(residual, {rows, columns});
    const auto dw = run(past, tensor(apart, {rows, columns}));
    const auto kept = residual;
    Displaced<T> from_elsewhere(residual);
    Values<T> again(x.size());
    EXPECT_TRUE(
        same_bits(run(from_elsewhere.tensor({rows, columns}), tensor(again, {rows, columns})), dw))
        << columns;
    EXPECT_TRUE(same_bits(again, apart)) << columns;
    EXPECT_TRUE(same_bits(run({}, past), dw)) << columns;
    EXPECT_TRUE(same_bits(residual, apart)) << columns;
    residual = kept;
    EXPECT_TRUE(same_bits(run(past, tensor(x, {rows, columns})), dw)) << columns;
    EXPECT_TRUE(same_bits(x, apart)) << columns;
  }
}

TYPED_TEST(RmsNorm, BackwardHasTheSameBitsForAnyNumberOfThreads) {
  using T = TypeParam;
  const int64_t rows = 301, columns = 172;
  auto x = normals<T>(rows * columns, 1), dy = normals<T>(rows * columns, 2);
  auto w = normals<T>(columns, 3);
  auto rstd = this->run(x, {}, w).rstd;
  Values<T> dx[2];
  Values<float> dw[2];
  for (const int i : {0, 1})
    with_threads(i + 1, [&] {
      dx[i].assign(x.size(), from_float<T>(0));
      dw[i].assign(w.size(), 0);
      Exec exec = this->bench_.exec();
      rms_norm_backward(exec, {.dy = tensor(dy, {rows, columns}),
                               .x = tensor(x, {rows, columns}),
                               .w = tensor(w),
                               .rstd = tensor(rstd),
                               .dx = tensor(dx[i], {rows, columns}),
                               .dw = tensor(dw[i])});
    });
  EXPECT_TRUE(same_bits(dx[0], dx[1]));
  EXPECT_TRUE(same_bits(dw[0], dw[1]));
}

TEST(RmsNormChecks, AWrongShapeAbortsNamingTheOperand) {
  OpBench bench;
  Values<float> x(6), w(2), y(6);
  Exec exec = bench.exec();
  EXPECT_DEATH(rms_norm(exec, {.x = tensor(x, {2, 3}),
                               .delta = {},
                               .w = tensor(w),
                               .y = tensor(y, {2, 3}),
                               .rstd = {},
                               .eps = kEps}),
               "rms_norm: w is float32 \\[2\\], expected float32 \\[3\\]");
}

}  // namespace
}  // namespace miles::test
