#include "ops/swiglu.h"

#include "tests/ops/op_test.h"

namespace miles::test {
namespace {

std::vector<double> reference(const std::vector<double>& gate_up, size_t columns) {
  std::vector<double> y;
  for (size_t row = 0; row < gate_up.size(); row += 2 * columns)
    for (size_t c = 0; c < columns; ++c) {
      const double gate = gate_up[row + c];
      y.push_back(gate / (1 + std::exp(-gate)) * gate_up[row + columns + c]);
    }
  return y;
}

template <class T>
class Swiglu : public ::testing::Test {
 protected:
  Values<T> run(Values<T> gate_up, int64_t columns) {
    const int64_t rows = static_cast<int64_t>(gate_up.size()) / (2 * columns);
    Values<T> y(static_cast<size_t>(rows * columns));
    Exec exec = bench_.exec();
    swiglu(exec,
           {.gate_up = tensor(gate_up, {rows, 2 * columns}), .y = tensor(y, {rows, columns})});
    return y;
  }
  OpBench bench_;
};
TYPED_TEST_SUITE(Swiglu, StorageTypes);

TYPED_TEST(Swiglu, MatchesTheDefinitionAtEveryWidth) {
  using T = TypeParam;
  for (const int64_t columns : {1, 3, 64, 172, 4099, 4104}) {
    const auto gate_up = normals<T>(3 * 2 * columns, 1, 3);
    expect_near(this->run(gate_up, columns),
                reference(doubles(gate_up), static_cast<size_t>(columns)),
                {2.01 * kUnit<T> + 8 * 0x1p-24, 1e-30}, "y");
  }
}

TYPED_TEST(Swiglu, LargeGatesSaturateWithoutNaN) {
  using T = TypeParam;
  const Values<T> gate_up = {from_float<T>(-1000), from_float<T>(1000), from_float<T>(2),
                             from_float<T>(2)};
  const auto y = this->run(gate_up, 2);
  EXPECT_EQ(to_float(y[0]), 0.0F);
  EXPECT_EQ(to_float(y[1]), to_float(from_float<T>(1000)) * 2);
}

TYPED_TEST(Swiglu, ARowsBitsDependOnTheRowAlone) {
  using T = TypeParam;
  const int64_t columns = 173, rows = 200;
  const auto gate_up = normals<T>(rows * 2 * columns, 1);
  Values<T> one, two;
  with_threads(1, [&] { one = this->run(gate_up, columns); });
  with_threads(2, [&] { two = this->run(gate_up, columns); });
  EXPECT_TRUE(same_bits(one, two));
  EXPECT_TRUE(same_bits(this->run(rows_of(gate_up, 2 * columns, 150, 1), columns),
                        rows_of(one, columns, 150, 1)));
}

TYPED_TEST(Swiglu, BackwardIsTheDerivativeAndGivesTheResultAgainAlsoInPlace) {
  using T = TypeParam;
  for (const int64_t columns : {37, 64}) {
    const int64_t rows = 3;
    auto gate_up = normals<T>(rows * 2 * columns, 1), dy = normals<T>(rows * columns, 2);
    const auto want = differences(doubles(gate_up), [&](const std::vector<double>& v) {
      return dot(doubles(dy), reference(v, static_cast<size_t>(columns)));
    });
    const auto y = this->run(gate_up, columns);
    Values<T> d(gate_up.size()), again(y.size());
    Exec exec = this->bench_.exec();
    swiglu_backward(exec, {.dy = tensor(dy, {rows, columns}),
                           .gate_up = tensor(gate_up, {rows, 2 * columns}),
                           .dgate_up = tensor(d, {rows, 2 * columns}),
                           .y = tensor(again, {rows, columns})});
    expect_near(d, want, {2.01 * kUnit<T>, 1e-5}, "dgate_up");
    EXPECT_TRUE(same_bits(again, y));
    swiglu_backward(exec, {.dy = tensor(dy, {rows, columns}),
                           .gate_up = tensor(gate_up, {rows, 2 * columns}),
                           .dgate_up = tensor(gate_up, {rows, 2 * columns}),
                           .y = tensor(dy, {rows, columns})});
    EXPECT_TRUE(same_bits(gate_up, d));
    EXPECT_TRUE(same_bits(dy, y));
  }
}

TYPED_TEST(Swiglu, WhereRowsLieChangesNoBit) {
  using T = TypeParam;
  const int64_t columns = 4104, rows = 2;  // on a GPU several blocks a row
  auto gate_up = normals<T>(rows * 2 * columns, 1, 3), dy = normals<T>(rows * columns, 2);
  const auto want_y = this->run(gate_up, columns);
  Displaced<T> gate_ups(gate_up), dys(dy), y(dy);
  Exec exec = this->bench_.exec();
  swiglu(exec, {.gate_up = gate_ups.tensor({rows, 2 * columns}), .y = y.tensor({rows, columns})});
  EXPECT_TRUE(same_bits(y.values(), want_y));
  const auto backward = [&](const Tensor& d, const Tensor& both) {
    swiglu_backward(exec, {.dy = d, .gate_up = both, .dgate_up = both, .y = d});
  };
  backward(tensor(dy, {rows, columns}), tensor(gate_up, {rows, 2 * columns}));
  backward(dys.tensor({rows, columns}), gate_ups.tensor({rows, 2 * columns}));
  EXPECT_TRUE(same_bits(gate_ups.values(), gate_up));
  EXPECT_TRUE(same_bits(dys.values(), dy));
  EXPECT_TRUE(same_bits(dy, want_y));
}

}  // namespace
}  // namespace miles::test
