#include "ops/adamw.h"

#include <bit>
#include <limits>

#include "tests/ops/op_test.h"

namespace miles::test {
namespace {

TEST(SplitMaster, JoinsToTheSameBitsAndRoundsToNearest) {
  for (uint64_t i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(philox(3, RngUse::test, 0, i)[0]);
    const SplitMaster split = split_master(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(to_float(split.high)));
      ASSERT_TRUE(std::isnan(join_master(split)));
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(join_master(split)), std::bit_cast<uint32_t>(x));
    const double error = std::abs(double{to_float(split.high)} - double{x});
    if (!std::isfinite(to_float(split.high))) continue;  // the largest numbers round to infinity
    ASSERT_LE(error, std::abs(double{x}) * kUnit<BFloat16> + 0x1p-134) << x;
  }
}

TEST(SplitMaster, EdgesKeepTheirMeaning) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {0.0F, -0.0F, infinity, -infinity, std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::denorm_min(), 1.00390625F})
    EXPECT_EQ(std::bit_cast<uint32_t>(join_master(split_master(x))), std::bit_cast<uint32_t>(x));
  EXPECT_EQ(to_float(split_master(infinity).high), infinity);
  for (const uint32_t bits : {0x7FFFFFFFU, 0xFFFFFFFFU, 0x7F800001U, 0xFF80FFFFU}) {
    const SplitMaster split = split_master(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(to_float(split.high))) << bits;
    EXPECT_TRUE(std::isnan(join_master(split))) << bits;
  }
}

/// A run of parameters with its state.
template <class T>
struct Training {
  Values<float> master;
  Values<T> param, grad;
  Values<uint16_t> low;
  Values<float> m, v;

  explicit Training(int64_t n) : master(normals<float>(n, 1)), grad(normals<T>(n, 2)) {
    m = normals<float>(n, 3, 0.1F);
    for (const float x : normals<float>(n, 4, 0.1F)) v.push_back(x * x);
    split();
  }
  void split() {
    for (const float x : master) {
      if constexpr (std::is_same_v<T, BFloat16>) {
        param.push_back(split_master(x).high);
        low.push_back(split_master(x).low);
      } else {
        param.push_back(x);
      }
    }
  }
  Values<float> joined() const {
    Values<float> all;
    for (size_t i = 0; i < param.size(); ++i) {
      if constexpr (std::is_same_v<T, BFloat16>)
        all.push_back(join_master({param[i], low[i]}));
      else
        all.push_back(param[i]);
    }
    return all;
  }
  /// One step on elements [begin, begin + count).
  void step(int64_t begin, int64_t count) {
    OpBench bench;
    Exec exec = bench.exec();
    adamw(exec, {.param = tensor(param).rows(begin, count),
                 .low = low.empty() ? Tensor() : tensor(low).rows(begin, count),
                 .m = tensor(m).rows(begin, count),
                 .v = tensor(v).rows(begin, count),
                 .grad = tensor(grad).rows(begin, count),
                 .grad_scale = 0.5F,
                 .lr = 0.01F,
                 .beta1 = 0.9F,
                 .beta2 = 0.99F,
                 .eps = 1e-8F,
                 .weight_decay = 0.1F,
                 .step = 3});
  }
};

template <class T>
class AdamW : public ::testing::Test {};
TYPED_TEST_SUITE(AdamW, StorageTypes);

TYPED_TEST(AdamW, MatchesTheAlgorithm) {
  for (const int64_t n : {1, 3, 64, 172, 4099, 20001}) {
    Training<TypeParam> run(n);
    std::vector<double> want, want_m, want_v;
    for (size_t i = 0; i < run.master.size(); ++i) {
      const double g = double{to_float(run.grad[i])} * 0.5, x = double{run.master[i]};
      want_m.push_back(0.9 * double{run.m[i]} + 0.1 * g);
      want_v.push_back(0.99 * double{run.v[i]} + 0.01 * g * g);
      const double m = want_m.back() / (1 - std::pow(0.9, 3));
      const double v = want_v.back() / (1 - std::pow(0.99, 3));
      want.push_back(x - 0.01 * (m / (std::sqrt(v) + 1e-8) + 0.1 * x));
    }
    run.step(0, n);
    expect_near(run.m, want_m, {4e-7, 1e-7}, "m");
    expect_near(run.v, want_v, {3e-6, 1e-9}, "v");  // 1 − 0.99F is off by 2e-7 / 0.01 or so
    expect_near(run.joined(), want, {1e-6, 1e-6}, "master");
  }
}

TYPED_TEST(AdamW, AnySplitOfARunAndAnyThreadsGiveTheSameBits) {
  const int64_t n = 20011;
  Training<TypeParam> whole(n), parts(n), serial(n);
  with_threads(2, [&] { whole.step(0, n); });
  with_threads(1, [&] { serial.step(0, n); });
  for (int64_t begin = 0; begin < n; begin += 777)
    parts.step(begin, std::min<int64_t>(777, n - begin));
  for (const Training<TypeParam>* other : {&parts, &serial}) {
    EXPECT_TRUE(same_bits(whole.param, other->param));
    EXPECT_TRUE(same_bits(whole.low, other->low));
    EXPECT_TRUE(same_bits(whole.m, other->m));
    EXPECT_TRUE(same_bits(whole.v, other->v));
  }
}

TEST(AdamWSplit, TheKernelSplitsAsSplitMasterDoes) {
  // With f32 parameters the same masters come out, unsplit.
  Training<BFloat16> narrow(5000);
  Training<float> wide(5000);
  narrow.grad.assign(5000, to_bfloat16(0.25F));
  wide.grad.assign(5000, 0.25F);
  narrow.step(0, 5000);
  wide.step(0, 5000);
  for (size_t i = 0; i < 5000; ++i) {
    const SplitMaster want = split_master(wide.param[i]);
    ASSERT_EQ(narrow.param[i].bits, want.high.bits) << i;
    ASSERT_EQ(narrow.low[i], want.low) << i;
  }
}

TEST(AdamWSplit, ANaNGradientShowsInTheParameter) {
  Training<BFloat16> run(19);
  run.grad[18] = to_bfloat16(std::numeric_limits<float>::quiet_NaN());
  run.step(0, 19);
  EXPECT_TRUE(std::isnan(to_float(run.param[18])));
  EXPECT_FALSE(std::isnan(to_float(run.param[17])));
}

}  // namespace
}  // namespace miles::test
